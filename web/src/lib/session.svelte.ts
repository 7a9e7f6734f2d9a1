// The state of the page: models, the current trace, and a second one for comparison.

import { router } from './router.svelte';
import { StaticSource } from './staticExport';
import { missingInput } from './missingInput';
import { describe, PageError, type Problem } from './errors';
import { ServerSource, type Source } from './source';
import type { ModelInfo, RunInfo, TraceInfo, TraceInput } from './types';

/** The words of the address that say what the model is given: others change without its being read again. */
export const INPUT_PARAMS = ['in', 'sentence', 'out', 'to', 'question', 'context', 'held'].flatMap((name) => [
  name,
  `${name}_b`,
]);

/** Of two inputs that are compared, the first or the second: what their words of the address end with. */
export type Side = '' | '_b';

/** What was read of an input: the trace, and all the sentences that it is one of. */
interface Read {
  trace: TraceInfo;
  sentences: string[];
}

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
  for (const name of ['to', 'question', 'context'] as const) {
    const given = words[`${name}${suffix}`];
    if (given !== undefined) input[name] = given;
  }
  const held = words[`held${suffix}`];
  if (held !== undefined && storedInputs.has(held)) Object.assign(input, storedInputs.get(held));
  return input;
}

/** Which of the sentences of a text is on show, from 0; the address counts from 1. */
export function sentenceAt(words: Record<string, string | null>, suffix: Side, count: number): number {
  const asked = Math.round(Number(words[`sentence${suffix}`] ?? 1));
  return asked >= 1 && asked <= count ? asked - 1 : 0;
}

/** Pictures and series given in this visit, by the name the address holds. */
export const storedInputs = new Map<string, TraceInput>();

/** What a page that was written to disk holds; a served page has none. */
const kept = document.getElementById('kept')?.textContent;

class Session {
  source: Source = kept ? new StaticSource(kept) : new ServerSource();
  models = $state.raw<ModelInfo[]>([]);
  runs = $state.raw<RunInfo[]>([]);
  trace = $state.raw<TraceInfo | null>(null);
  /** The second input's trace where two are compared, else null. */
  beside = $state.raw<TraceInfo | null>(null);
  /** Of each input what the model reads one by one; fewer than two where it is read whole. */
  sentences = $state.raw<Record<Side, string[]>>({ '': [], _b: [] });
  /** The address's words for what is on show; null where it had none. */
  given = $state.raw<Record<string, string | null>>({});
  busy = $state(false);
  /** Why what was last given is not what is on show; null where it is. */
  problem = $state.raw<Problem | null>(null);
  /** Counts how often the model was asked to read, whether or not the address changed. */
  turn = $state(0);

  model: ModelInfo | null = $derived(this.models.find((m) => m.id === router.model) ?? this.models[0] ?? null);

  /** Whether the trace on show belongs to an earlier input: the current one is being read, or was rejected. */
  stale: boolean = $derived(
    this.trace !== null && INPUT_PARAMS.some((name) => (router.params[name] ?? null) !== (this.given[name] ?? null)),
  );

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
    const b = router.params['in_b'] !== undefined || router.params['held_b'] !== undefined;
    const given = Object.fromEntries(INPUT_PARAMS.map((name) => [name, router.params[name] ?? null]));
    await this.#doing(this.#reading(model, b), ([first, second]) => {
      this.trace = first.trace;
      this.beside = second?.trace ?? null;
      this.sentences = { '': first.sentences, _b: second?.sentences ?? [] };
      this.given = given;
    });
  }

  async #reading(model: ModelInfo, b: boolean): Promise<Read[]> {
    const words = { ...router.params };
    const which: Side[] = b ? ['', '_b'] : [''];
    const inputs = which.map((suffix) => inputOf(words, model, suffix));
    const lack = this.source.live
      ? inputs.map((input) => missingInput(input, model)).find((one) => one !== null)
      : null;
    if (lack) throw new PageError(lack);
    return Promise.all(
      which.map((suffix, n) => this.#alone(model, inputs[n], (count) => sentenceAt(words, suffix, count))),
    );
  }

  /** The trace of an input: of a text that a translator reads by its sentences, that of the chosen one. */
  async #alone(model: ModelInfo, input: TraceInput, chosen: (count: number) => number): Promise<Read> {
    const cut = this.source.live && model.kind === 'translate' && input.text !== undefined;
    const sentences = cut ? await this.source.sentences(model.id, input) : [];
    const text = sentences[chosen(sentences.length)] ?? input.text;
    return { trace: await this.source.trace({ ...input, text, model: model.id }), sentences };
  }

  /** Let go of what was refused: what is on show is what is given again. */
  keepEarlier(): void {
    this.problem = null;
    router.go({ params: this.given });
  }

  #asked = 0;

  /** Wait for an answer and take it; the answer to an older question is let go, and so is its failure. */
  async #doing<T>(coming: Promise<T>, take: (answer: T) => void): Promise<void> {
    const mine = ++this.#asked;
    this.busy = true;
    let problem: Problem | null = null;
    try {
      const answer = await coming;
      if (mine === this.#asked) take(answer);
    } catch (error) {
      problem = describe(error);
    }
    if (mine !== this.#asked) return;
    this.problem = problem;
    this.busy = false;
  }
}

export const session = new Session();
