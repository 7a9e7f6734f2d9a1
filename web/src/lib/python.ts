// Python code that computes what a figure shows: one declaration for each request of the page.

import { knownTraces, type Request } from './shown.svelte';
import type { Intervention, TraceInfo, TraceInput } from './types';

type Arguments<M extends Request['method']> = Extract<Request, { method: M }>['args'];

/** The module of the function, and the expression, given the Python names of the traces by id. */
type Written = [module: string, expression: string] | null;
type Name = (trace: unknown) => string;

/** A value as Python: strings, numbers, booleans, None, tuples and dicts. */
export function literal(value: unknown): string {
  if (value === null || value === undefined) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (typeof value === 'string') return JSON.stringify(value);
  if (Array.isArray(value)) return `(${value.map(literal).join(', ')}${value.length === 1 ? ',' : ''})`;
  if (typeof value === 'object')
    return `{${Object.entries(value)
      .map(([name, one]) => `${JSON.stringify(name)}: ${literal(one)}`)
      .join(', ')}}`;
  return String(value);
}

const keywords = (values: object): string =>
  Object.entries(values)
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => `, ${name}=${literal(value)}`)
    .join('');

const CALLS: { [M in Request['method']]?: (name: Name, ...args: Arguments<M>) => Written } = {
  tensor: (name, id, tensor, query) => {
    const { slice, pool, minus } = (query ?? {}) as { slice?: string; pool?: number; minus?: string };
    const options = `${slice ? `, ${literal(slice)}` : ''}${keywords({ pool })}${minus ? `, minus=${name(minus)}` : ''}`;
    return ['tensors', `read_tensor(${name(id)}, ${literal(tensor)}${options}).values`];
  },
  heads: (name, id) => ['head_patterns', `describe_heads(${name(id)})`],
  links: (name, id, ...where) => ['head_patterns', `rank_links(${name(id)}, ${where.map(literal).join(', ')})`],
  ablation: (name, id, attention, options) => {
    const { token, reference, ...rest } = (options ?? {}) as Record<string, unknown>;
    const other = reference ? `, reference=${name(reference)}` : '';
    return [
      'head_ablation',
      `ablate_heads(${name(id)}, ${literal(attention)}${keywords({ ...rest, id: token })}${other})`,
    ];
  },
  lens: (name, id, position, top) => [
    'logit_lens',
    `logit_lens(${name(id)}, ${literal(position)}, ${literal(top ?? 5)})`,
  ],
  next: (name, id, position, top) => [
    'logit_lens',
    `next_tokens(${name(id)}, ${literal(position)}, ${literal(top ?? 100)})`,
  ],
  unit: (name, id, ffn, unit) => ['logit_lens', `unit_tokens(${name(id)}, ${literal(ffn)}, ${literal(unit)})`],
  attribution: (name, id, position, token, against) => [
    'logit_attribution',
    `attribute_logit(${name(id)}, ${literal(position)}, ${literal(token)}${keywords({ against })})`,
  ],
  difference: (name, before, after) => ['comparison', `compare_traces(${name(before)}, ${name(after)})`],
  patching: (name, clean, corrupted) => ['patching', `compare_answers(${name(clean)}, ${name(corrupted)}).setup()`],
  patchedSite: (name, clean, corrupted, site) => [
    'patching',
    `compare_answers(${name(clean)}, ${name(corrupted)}).patch(${literal(site)})`,
  ],
};

const CLASSES: Record<Intervention['kind'], string> = {
  ablate_head: 'AblateHead',
  skip_layer: 'SkipLayer',
  mask_token: 'MaskToken',
  swap_tokens: 'SwapTokens',
  scale_residual: 'ScaleResidual',
  scale_positions: 'ScalePositions',
  force_token: 'ForceToken',
  patch: 'PatchActivation',
};

/** The code of requests; empty if none of them has a Python function. */
export function python(requests: Request[], load: string): string {
  const traces = new Map<string, string>(); // id -> name
  const imports = new Map<string, Set<string>>();
  const use = (module: string, name: string): string => {
    imports.set(module, (imports.get(module) ?? new Set()).add(name));
    return name;
  };
  const name: Name = (id) => {
    const key = String(id);
    if (!traces.has(key)) traces.set(key, traces.size ? `trace_${traces.size + 1}` : 'trace');
    return traces.get(key)!;
  };
  const lines: string[] = [];
  for (const { method, args } of requests) {
    const write = CALLS[method] as ((name: Name, ...args: unknown[]) => Written) | undefined;
    const written = write?.(name, ...args);
    const ids = [...traces.keys()];
    if (!written || ids.some((id) => !knownTraces.has(id))) {
      for (const id of ids) if (!knownTraces.has(id)) traces.delete(id);
      continue;
    }
    use(written[0], written[1].slice(0, written[1].indexOf('(')));
    lines.push(`${lines.length ? `result_${lines.length + 1}` : 'result'} = ${written[1]}`);
  }
  if (!lines.length) return '';
  const input = (given: TraceInput): string => {
    use('schema', 'TraceInput');
    const { image } = given;
    const rest = Object.entries(given).filter(
      ([field, value]) => field !== 'image' && value !== undefined && value !== null,
    );
    const fields = rest.map(([field, value]) => {
      if (field !== 'series') return `${field}=${literal(value)}`;
      const { columns, holdout } = value as { columns: object; holdout?: number };
      return `series=${use('schema', 'SeriesColumns')}(columns=${literal(columns)}, holdout=${literal(holdout)})`;
    });
    if (image) fields.push(`image=${literal(image)}`);
    return `TraceInput(${fields.join(', ')})`;
  };
  const change = (one: Intervention): string => {
    const { kind, ...fields } = one;
    const told = Object.entries(fields).map(([field, value]) =>
      field === 'source' ? `source=${input(value as TraceInput)}` : `${field}=${literal(value)}`,
    );
    return `${use('schema', CLASSES[kind])}(${told.join(', ')})`;
  };
  const made = [...traces].flatMap(([id, name]) => {
    const info: TraceInfo | undefined = knownTraces.get(id);
    if (!info) return [];
    const changes = info.interventions.length ? `, [${info.interventions.map(change).join(', ')}]` : '';
    return `${name} = ${use('trace', 'trace_model')}(pipeline, ${input(info.input)}${changes})`;
  });
  return [
    'import glassformer',
    ...[...imports]
      .sort()
      .map(([module, names]) => `from glassformer.interpret.${module} import ${[...names].sort().join(', ')}`),
    '',
    `pipeline = glassformer.load(${literal(load)})`,
    ...made,
    ...lines,
    '',
  ].join('\n');
}
