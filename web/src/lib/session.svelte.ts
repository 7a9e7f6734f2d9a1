// The state of the page: models, the current trace, and a second one for comparison.

import { locale } from './i18n.svelte';
import { router } from './router.svelte';
import { StaticSource } from './staticExport';
import { storedInputs } from './inputStore';
import { imagesOf, pairOf, textsOf } from './pairs';
import { readPrompt } from '../media/prompts';
import { missingInput } from './missingInput';
import { describe, PageError, type Problem } from './errors';
import { noted } from './shown.svelte';
import { ServerSource, type Source } from './source';
import type { ModelInfo, RunInfo, StoryInfo, TraceInfo, TraceInput } from './types';

/** The URL parameters of a drawing, for both inputs, and the fields that they set. */
export const DRAWN = [
  ['seed', 'seed'],
  ['steps', 'num_inference_steps'],
  ['guidance', 'guidance_scale'],
  ['frames', 'num_frames'],
  ['temperature', 'temperature'],
  ['top_k', 'top_k'],
  ['top_p', 'top_p'],
] as const;

/** The URL parameters of the input; when one changes, the model runs again. */
export const INPUT_PARAMS = [
  'in',
  'sentence',
  'out',
  'to',
  'question',
  'context',
  'held',
  'pair',
  'points',
  'box',
  ...DRAWN.map(([name]) => name),
].flatMap((name) => [name, `${name}_b`]);

/** The first or second input of a comparison: the suffix of its URL parameters. */
export type Side = '' | '_b';

/** The trace of an input, and all sentences of the input. */
interface TracedInput {
  trace: TraceInfo;
  sentences: string[];
}

/** The model's example: its Korean question on the Korean page. */
export const exampleOf = (model: ModelInfo): TraceInput =>
  (locale.language === 'ko' && model.examples.find((one) => /[가-힣]/.test(one.question ?? ''))) || model.example;

/** The input in the URL; images and series are stored under a name. */
export function inputOf(params: Record<string, string>, model: ModelInfo, suffix = ''): TraceInput {
  if (model.kind === 'similarity') {
    const [image, text] = pairOf(params, model);
    return { image: imagesOf(params, model)[image], text: textsOf(params, model)[text] };
  }
  const input: TraceInput = { ...exampleOf(model) };
  const text = params[`in${suffix}`];
  if (text !== undefined) {
    input.text = text;
    delete input.target;
  }
  const target = params[`out${suffix}`];
  if (target !== undefined) input.target = target.split('.').filter(Boolean).map(Number);
  for (const name of ['to', 'question', 'context'] as const) {
    const value = params[`${name}${suffix}`];
    if (value !== undefined) input[name] = value;
  }
  if (model.kind === 'draw')
    for (const [name, field] of DRAWN) if (params[name] !== undefined) input[field] = Number(params[name]);
  const held = params[`held${suffix}`];
  if (held !== undefined && storedInputs.has(held)) {
    for (const name of ['points', 'background_points', 'box'] as const) delete input[name]; // of the example
    Object.assign(input, storedInputs.get(held));
  }
  const prompt = model.kind === 'segment' && !suffix ? readPrompt(params) : null;
  if (!prompt) return input;
  const { points, background_points, box } = prompt;
  return { ...input, points, background_points, box: box ?? undefined };
}

/** The index of the selected sentence; the URL counts from 1. */
export function sentenceAt(params: Record<string, string | null>, suffix: Side, count: number): number {
  const number = Math.round(Number(params[`sentence${suffix}`] ?? 1));
  return number >= 1 && number <= count ? number - 1 : 0;
}

/** A stored trace: in the page itself, or in the folder that it names. A served page has none. */
const stored = document.getElementById('trace-');

class Session {
  source: Source = noted(stored ? new StaticSource(stored.dataset.folder) : new ServerSource());
  models = $state.raw<ModelInfo[]>([]);
  runs = $state.raw<RunInfo[]>([]);
  stories = $state.raw<StoryInfo[]>([]);
  trace = $state.raw<TraceInfo | null>(null);
  /** The trace of the second input while comparing. */
  comparison = $state.raw<TraceInfo | null>(null);
  /** The sentences of each input; fewer than two if it is not split. */
  sentences = $state.raw<Record<Side, string[]>>({ '': [], _b: [] });
  /** The input parameters of the current trace. */
  inputParams = $state.raw<Record<string, string | null>>({});
  busy = $state(false);
  /** Why the last input was rejected. */
  problem = $state.raw<Problem | null>(null);
  /** Counts the runs, also those without a change of the URL. */
  turn = $state(0);

  model: ModelInfo | null = $derived(this.models.find((m) => m.id === router.model) ?? this.models[0] ?? null);

  /** Whether the trace on show belongs to an earlier input: the current one is being read, or was rejected. */
  stale: boolean = $derived(
    this.trace !== null &&
      INPUT_PARAMS.some((name) => (router.params[name] ?? null) !== (this.inputParams[name] ?? null)),
  );

  /** Whether the current image or series is another one than that of the trace on show. */
  newInput: boolean = $derived((router.params.held ?? null) !== (this.inputParams.held ?? null));

  async begin(): Promise<void> {
    await this.#load(this.source.models(), ({ models, runs, stories }) => {
      for (const { id, input } of stories) if (input.image || input.series) storedInputs.set(id, input);
      this.models = models;
      this.runs = runs;
      this.stories = stories;
    });
  }

  /** Run the model on the input in the URL. */
  async read(): Promise<void> {
    const model = this.model;
    if (!model) return;
    const b = router.params['in_b'] !== undefined || router.params['held_b'] !== undefined;
    const inputParams = Object.fromEntries(INPUT_PARAMS.map((name) => [name, router.params[name] ?? null]));
    await this.#load(this.#traceAll(model, b), ([first, second]) => {
      this.trace = first.trace;
      this.comparison = second?.trace ?? null;
      this.sentences = { '': first.sentences, _b: second?.sentences ?? [] };
      this.inputParams = inputParams;
    });
  }

  async #traceAll(model: ModelInfo, b: boolean): Promise<TracedInput[]> {
    const params = { ...router.params };
    const which: Side[] = b ? ['', '_b'] : [''];
    const inputs = which.map((suffix) => inputOf(params, model, suffix));
    const missing = this.source.live
      ? inputs.map((input) => missingInput(input, model)).find((one) => one !== null)
      : null;
    if (missing) throw new PageError(missing);
    return Promise.all(
      which.map((suffix, n) => this.#traceOne(model, inputs[n], (count) => sentenceAt(params, suffix, count))),
    );
  }

  /** Trace an input: of a text with several sentences, the selected one. */
  async #traceOne(model: ModelInfo, input: TraceInput, chosen: (count: number) => number): Promise<TracedInput> {
    const cut = this.source.live && model.kind === 'translate' && input.text !== undefined;
    const sentences = cut ? await this.source.sentences(model.id, input) : [];
    const text = sentences[chosen(sentences.length)] ?? input.text;
    return { trace: await this.source.trace({ ...input, text, model: model.id }), sentences };
  }

  /** Restore the input of the current trace. */
  keepEarlier(): void {
    this.problem = null;
    router.go({ params: this.inputParams });
  }

  #requests = 0;

  /** Await a response and apply it unless a newer request was started. */
  async #load<T>(promise: Promise<T>, take: (answer: T) => void): Promise<void> {
    const request = ++this.#requests;
    this.busy = true;
    let problem: Problem | null = null;
    try {
      const answer = await promise;
      if (request === this.#requests) take(answer);
    } catch (error) {
      problem = describe(error);
    }
    if (request !== this.#requests) return;
    this.problem = problem;
    this.busy = false;
  }
}

export const session = new Session();
