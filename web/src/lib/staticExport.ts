// A trace stored by `glassformer explore --export` or `--site` (glassformer/explorer/stored_trace.py): no model runs.
//
// Its index and its tensors are compressed text, in elements of the page or in scripts next to it, which are loaded
// when a tensor of theirs is needed. Scripts, because a page on disk may not fetch other files.

import { PageError } from './errors';
import { router } from './router.svelte';
import type { FlowQuery, TensorQuery, Source } from './source';
import { KINDS, Tensor, type Numbers } from './tensor';
import type {
  HeadsInfo,
  LensInfo,
  ModelInfo,
  ModelsResponse,
  NextTokenInfo,
  RunInfo,
  RunSnapshots,
  SearchInfo,
  StoryInfo,
  TokenFlow,
  TraceInfo,
} from './types';

interface StoredTensor {
  shape: number[];
  dtype: string;
  chunk: string;
  start: number;
  end: number;
}

interface Formula {
  of: string;
  from: string[];
  eps?: number;
}

/** How the matrices of an attention layer follow from its queries and keys. */
export interface AttentionFormula {
  scale: number;
  softcap: number | null;
  mask?: string;
  bias?: string;
}

interface StoredTrace {
  model: ModelInfo | null; // null: a page of stories only
  trace: TraceInfo;
  heads: HeadsInfo;
  lens: LensInfo[]; // by position
  next: NextTokenInfo[];
  flows: TokenFlow[]; // without vectors, which are in the tensors; the default one first
  search: SearchInfo | null;
  tensors: Record<string, StoredTensor | Formula>;
  matrices: Record<string, AttentionFormula>;
  left_out: number;
  stories: StoryInfo[];
  start: string; // the address to open at first
  run: RunInfo | null;
  snapshots: RunSnapshots | null;
}

function bytes(base64: string): Uint8Array<ArrayBuffer> {
  const text = atob(base64);
  const data = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) data[i] = text.charCodeAt(i); // ten times as fast as Uint8Array.from
  return data;
}

const inflate = (data: Uint8Array<ArrayBuffer>): Response =>
  new Response(new Blob([data]).stream().pipeThrough(new DecompressionStream('deflate')));

const HALF = new Float32Array(65536); // the values of float16
for (let n = 0; n < HALF.length; n++) {
  const exponent = (n >> 10) & 31;
  const fraction = n & 1023;
  const size =
    exponent === 31
      ? fraction
        ? NaN
        : Infinity
      : exponent
        ? 2 ** (exponent - 15) * (1 + fraction / 1024)
        : 2 ** -24 * fraction;
  HALF[n] = n & 0x8000 ? -size : size;
}

/** The numbers of a stored tensor: first the first bytes of all, then the second, ... */
export function unpack(planes: Uint8Array, dtype: string): Numbers {
  const width = Number(/\d+/.exec(dtype)) / 8;
  const count = planes.length / width;
  const data = new Uint8Array(planes.length);
  for (let b = 0, i = 0; b < width; b++) for (let n = 0; n < count; n++, i++) data[n * width + b] = planes[i];
  return dtype === 'float16'
    ? Float32Array.from(new Uint16Array(data.buffer), (n) => HALF[n])
    : new KINDS[dtype](data.buffer);
}

export const MATRICES = ['dot', 'scaled', 'masked', 'weights'] as const;

/** The scores or weights (B, H, T, S) of attention; query heads may share key heads. */
export function attentionMatrix(
  q: Tensor,
  k: Tensor,
  matrix: string,
  { scale, softcap }: AttentionFormula,
  mask: Tensor | null = null,
  bias: Tensor | null = null,
): Tensor {
  const [rows, heads, queries, width] = q.shape;
  const [, groups, keys] = k.shape;
  const scores = new Float32Array(rows * heads * queries * keys);
  const stage = MATRICES.findIndex((name) => name === matrix);
  // the row of a mask or bias, whose first dimensions may be 1
  const row = (of: Tensor, b: number, h: number, t: number): number =>
    (((b % of.shape[0]) * of.shape[1] + (h % of.shape[1])) * queries + t) * keys;
  for (let b = 0, n = 0; b < rows; b++)
    for (let h = 0; h < heads; h++) {
      const first = (b * groups + Math.floor((h * groups) / heads)) * keys * width;
      for (let t = 0; t < queries; t++) {
        const query = ((b * heads + h) * queries + t) * width;
        for (let s = 0; s < keys; s++, n++) {
          let sum = 0;
          for (let i = 0; i < width; i++) sum += q.data[query + i] * k.data[first + s * width + i];
          if (stage > 0) {
            sum *= scale;
            if (softcap) sum = softcap * Math.tanh(sum / softcap);
            if (bias) sum += bias.data[row(bias, b, h, t) + s];
          }
          scores[n] = stage > 1 && mask && !mask.data[row(mask, b, h, t) + s] ? -Infinity : sum;
        }
        if (matrix === 'weights') softmax(scores.subarray(n - keys, n));
      }
    }
  return new Tensor(scores, [rows, heads, queries, keys]);
}

function softmax(row: Float32Array): void {
  const most = row.reduce((a, b) => Math.max(a, b), -Infinity);
  if (most === -Infinity) return void row.fill(0); // fully masked
  let sum = 0;
  for (let i = 0; i < row.length; i++) sum += row[i] = Math.exp(row[i] - most);
  for (let i = 0; i < row.length; i++) row[i] /= sum;
}

/** The weighted values of each head, (B, H, T, K). */
function headOutputs(weights: Tensor, v: Tensor): Tensor {
  const [rows, heads, queries, keys] = weights.shape;
  const [, groups, , width] = v.shape;
  const out = new Float32Array(rows * heads * queries * width);
  for (let b = 0, n = 0; b < rows; b++)
    for (let h = 0; h < heads; h++) {
      const first = (b * groups + Math.floor((h * groups) / heads)) * keys * width;
      for (let t = 0; t < queries; t++, n++)
        for (let s = 0; s < keys; s++) {
          const weight = weights.data[n * keys + s];
          if (weight) for (let i = 0; i < width; i++) out[n * width + i] += weight * v.data[first + s * width + i];
        }
    }
  return new Tensor(out, [rows, heads, queries, width]);
}

/** Error function, to 1.5e-7 (Abramowitz and Stegun, 7.1.26). */
function erf(x: number): number {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return Math.sign(x) * (1 - tail * Math.exp(-x * x));
}

const ACTIVATIONS: Record<string, (x: number) => number> = {
  relu: (x) => Math.max(0, x),
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  silu: (x) => x / (1 + Math.exp(-x)),
  quick_gelu: (x) => x / (1 + Math.exp(-1.702 * x)),
  tanh: Math.tanh,
};

/** Compute a tensor that is not stored from those that are. */
export function evaluate({ of, eps = 0 }: Formula, from: Tensor[]): Tensor {
  const [first, ...rest] = from;
  if (of === 'same') return first;
  if (of === 'heads') return headOutputs(first, rest[0]);
  const { data } = first;
  const values = new Float32Array(data.length);
  if (of === 'sum') for (let n = 0; n < data.length; n++) values[n] = rest.reduce((x, one) => x + one.data[n], data[n]);
  else if (of in ACTIVATIONS)
    for (let n = 0; n < data.length; n++) values[n] = ACTIVATIONS[of](data[n]) * (rest[0]?.data[n] ?? 1);
  else {
    const [weight, bias] = rest;
    const width = weight.data.length;
    for (let at = 0; at < data.length; at += width) {
      const row = data.subarray(at, at + width) as Float32Array;
      const mean = of === 'layer_norm' ? row.reduce((a, b) => a + b, 0) / width : 0;
      const scale = 1 / Math.sqrt(row.reduce((a, b) => a + (b - mean) ** 2, 0) / width + eps);
      for (let i = 0; i < width; i++)
        values[at + i] = (row[i] - mean) * scale * weight.data[i] + (bias ? bias.data[i] : 0);
    }
  }
  return new Tensor(values, first.shape);
}

const reject = (): Promise<never> => Promise.reject(new PageError({ key: 'problem.static' }));

/** Where the scripts of a site leave their text. */
declare global {
  var glassformerChunks: Record<string, string> | undefined;
}

export class StaticSource implements Source {
  readonly live = false;
  #chunks = new Map<string, Promise<Uint8Array<ArrayBuffer>>>();
  #tensors = new Map<string, Promise<Tensor>>();
  #stored: Promise<StoredTrace>;

  /** folder: of the scripts of a site; none if the page contains everything. */
  constructor(readonly folder: string | undefined) {
    this.#stored = this.#chunk('').then((data) => inflate(data).json());
  }

  #chunk(name: string): Promise<Uint8Array<ArrayBuffer>> {
    const known = this.#chunks.get(name);
    if (known) return known;
    const chunk = this.#text(name).then(bytes);
    this.#chunks.set(name, chunk);
    chunk.catch(() => this.#chunks.delete(name));
    return chunk;
  }

  async #text(name: string): Promise<string> {
    if (this.folder === undefined) return document.getElementById(`trace-${name}`)!.textContent;
    await new Promise<void>((done, failed) => {
      const script = document.createElement('script');
      script.src = `${this.folder}trace-${name}.js`;
      script.onload = () => done();
      script.onerror = () => failed(new PageError({ key: 'problem.no_chunk' }));
      document.head.append(script);
    });
    return globalThis.glassformerChunks![name];
  }

  async models(): Promise<ModelsResponse> {
    const { model, stories, start, run } = await this.#stored;
    if (start && !Object.keys(router.params).length) router.open(start);
    return { models: model ? [model] : [], runs: run ? [run] : [], stories };
  }
  async trace(): Promise<TraceInfo> {
    return (await this.#stored).trace;
  }
  async tensor(trace: string, name: string, asked: TensorQuery = {}): Promise<Tensor> {
    if (asked.minus) return reject();
    const own = `${trace}/${name}`; // of a snapshot
    if (own in (await this.#stored).tensors) name = own;
    if (!this.#tensors.has(name)) this.#tensors.set(name, this.#load(name));
    const whole = await this.#tensors.get(name)!;
    const part = asked.slice ? whole.slice(asked.slice) : whole;
    return asked.pool ? part.pooled(asked.pool) : part;
  }
  async #load(name: string): Promise<Tensor> {
    const { matrices, tensors } = await this.#stored;
    const owner = name.slice(0, name.lastIndexOf('.'));
    const tail = name.slice(owner.length + 1);
    if (owner in matrices && (MATRICES as readonly string[]).includes(tail)) {
      const { mask, bias } = matrices[owner];
      const parts = [`${owner}.q`, `${owner}.k`, mask, bias];
      const [q, k, m, b] = await Promise.all(parts.map((one) => (one ? this.tensor('', one) : null)));
      return attentionMatrix(q!, k!, tail, matrices[owner], m, b);
    }
    const stored = tensors[name];
    if (!stored) throw new PageError({ key: (await this.#stored).left_out ? 'problem.left_out' : 'problem.static' });
    if ('of' in stored) {
      const inputs = stored.from.map((one) => (one in matrices ? `${one}.weights` : one));
      return evaluate(stored, await Promise.all(inputs.map((one) => this.tensor('', one))));
    }
    const part = (await this.#chunk(stored.chunk)).slice(stored.start, stored.end);
    return new Tensor(unpack(new Uint8Array(await inflate(part).arrayBuffer()), stored.dtype), stored.shape);
  }
  async heads(): Promise<HeadsInfo> {
    return (await this.#stored).heads;
  }
  async lens(_trace: string, position: number): Promise<LensInfo> {
    return (await this.#stored).lens.find((one) => one.position === position) ?? reject();
  }
  async next(_trace: string, position: number): Promise<NextTokenInfo> {
    return (await this.#stored).next.find((one) => one.position === position) ?? reject();
  }
  async flow(_trace: string, { sequence, position, row }: FlowQuery): Promise<TokenFlow> {
    const { flows } = await this.#stored;
    const same = (one: TokenFlow): boolean => one.sequence === sequence && one.position === position;
    const flow = sequence === undefined ? flows[0] : flows.find(same);
    if (!flow || flow.row !== row) return reject();
    const passes = flow.passes.map(async (pass) => {
      const names = Object.keys(pass.vectors);
      const tensors = await Promise.all(
        names.map((name) => this.tensor('', name, { slice: `${row},${pass.position}` })),
      );
      return { ...pass, vectors: Object.fromEntries(names.map((name, n) => [name, Array.from(tensors[n].data)])) };
    });
    return { ...flow, passes: await Promise.all(passes) };
  }
  async search(): Promise<SearchInfo> {
    return (await this.#stored).search ?? reject();
  }
  async run(): Promise<RunInfo> {
    return (await this.#stored).run ?? reject();
  }
  async snapshots(): Promise<RunSnapshots> {
    return (await this.#stored).snapshots ?? reject();
  }
  // These need the model.
  readonly ablation = reject;
  readonly links = reject;
  readonly attribution = reject;
  readonly patching = reject;
  readonly patchedSite = reject;
  readonly corpus = reject;
  readonly sentences = reject;
  readonly unit = reject;
  readonly difference = reject;
  readonly step = reject;
  readonly similarity = reject;
}
