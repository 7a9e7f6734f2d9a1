// What is open: the models, the trace on show, and the one beside it where two inputs are compared.

import { place } from './place.svelte';
import { Frozen } from './frozen';
import { Live, Refused, type Source } from './source';
import { t } from './words.svelte';
import type { ModelInfo, RunInfo, TraceInfo, TraceInput } from './types';

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

  async begin(): Promise<void> {
    await this.#doing(this.source.models(), ({ models, runs }) => {
      this.models = models;
      this.runs = runs;
    });
  }

  /** Have the model read what the address says. */
  async read(): Promise<void> {
    const model = this.model;
    if (!model) return;
    const b = place.words['in_b'] !== undefined || place.words['held_b'] !== undefined;
    const both = Promise.all([
      this.source.trace({ ...inputOf(place.words, model), model: model.id }),
      b ? this.source.trace({ ...inputOf(place.words, model, '_b'), model: model.id }) : null,
    ]);
    await this.#doing(both, ([trace, beside]) => {
      this.trace = trace;
      this.beside = beside;
    });
  }

  #asked = 0;

  /** Wait for an answer and take it; the answer to an older question is let go, and so is its failure. */
  async #doing<T>(coming: Promise<T>, take: (answer: T) => void): Promise<void> {
    const mine = ++this.#asked;
    this.busy = true;
    let problem = '';
    try {
      const answer = await coming;
      if (mine === this.#asked) take(answer);
    } catch (error) {
      problem = told(error);
    }
    if (mine !== this.#asked) return;
    this.problem = problem;
    this.busy = false;
  }
}

/** What went wrong, as a sentence for the reader. */
export function told(error: unknown): string {
  if (error instanceof Refused && error.status === 0) return t('problem.no_server');
  return error instanceof Error ? error.message : String(error);
}

export const session = new Session();
