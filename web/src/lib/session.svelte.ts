// What is open: the models, the trace on show, and the one beside it where two inputs are compared.

import { place } from './place.svelte';
import { Frozen } from './frozen';
import { Live, Refused, type Source } from './source';
import { t } from './words.svelte';
import type { Change, ModelInfo, RunInfo, Station, TraceInfo, TraceInput } from './types';

/** An input as the address carries it: text and target plainly, anything larger by a name. */
export function inputOf(words: Record<string, string>, model: ModelInfo, suffix = ''): TraceInput {
  const input: TraceInput = { ...model.example };
  const text = words[`in${suffix}`];
  if (text !== undefined) {
    input.text = text;
    delete input.target;
  }
  const target = words[`out${suffix}`];
  if (target !== undefined) input.target = target.split('.').filter(Boolean).map(Number);
  for (const name of ['tag', 'question', 'context'] as const) {
    const given = words[`${name}${suffix}`];
    if (given !== undefined) input[name] = given;
  }
  const held = words[`held${suffix}`];
  if (held !== undefined && keptInputs.has(held)) Object.assign(input, keptInputs.get(held));
  return input;
}

/** Pictures and series given in this visit, by the name the address holds. */
export const keptInputs = new Map<string, TraceInput>();

/** What a page that was written to disk holds; a served page has none. */
const kept = document.getElementById('kept')?.textContent;

class Session {
  source: Source = kept ? new Frozen(kept) : new Live();
  models = $state.raw<ModelInfo[]>([]);
  runs = $state.raw<RunInfo[]>([]);
  trace = $state.raw<TraceInfo | null>(null);
  /** The second input's trace where two are compared, else null. */
  beside = $state.raw<TraceInfo | null>(null);
  busy = $state(false);
  problem = $state('');

  model: ModelInfo | null = $derived(this.models.find((m) => m.id === place.model) ?? this.models[0] ?? null);
  station: Station | null = $derived(
    this.trace?.stations.find((s) => s.id === place.word('at')) ?? null,
  );

  async begin(): Promise<void> {
    await this.#doing(async () => {
      const { models, runs } = await this.source.models();
      this.models = models;
      this.runs = runs;
    });
  }

  #asked = 0;

  /** Have the model read what the address says; the answer to an older question is let go. */
  async read(): Promise<void> {
    const model = this.model;
    if (!model) return;
    const mine = ++this.#asked;
    await this.#doing(async () => {
      const b = place.words['in_b'] !== undefined || place.words['held_b'] !== undefined;
      const [trace, beside] = await Promise.all([
        this.source.trace({ ...inputOf(place.words, model), model: model.id }),
        b ? this.source.trace({ ...inputOf(place.words, model, '_b'), model: model.id }) : null,
      ]);
      if (mine !== this.#asked) return;
      this.trace = trace;
      this.beside = beside;
    });
  }

  /** The trace of the same input with something changed. */
  changed(changes: Change[]): Promise<TraceInfo> {
    const trace = this.trace;
    if (!trace) throw new Error('nothing is open');
    return this.source.trace({ ...trace.input, model: trace.model, changes });
  }

  async #doing(what: () => Promise<void>): Promise<void> {
    this.busy = true;
    try {
      await what();
      this.problem = '';
    } catch (error) {
      this.problem = told(error);
    } finally {
      this.busy = false;
    }
  }
}

/** What went wrong, as a sentence for the reader. */
export function told(error: unknown): string {
  if (error instanceof Refused && error.status === 0) return t('problem.no_server');
  return error instanceof Error ? error.message : String(error);
}

export const session = new Session();
