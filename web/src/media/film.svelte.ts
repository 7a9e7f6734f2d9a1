// The pictures of a drawing, requested step by step; the server takes a step when its pictures are asked for.

import { describe, extent, type Numbers, type Problem, session, Tensor } from '../lib';
import type { DrawOutcome, TraceInfo } from '../lib/types';
import { pictureOf, type Picture } from './picture';

interface Change {
  picture: Picture;
  mean: number; // shares of the range of colors
  most: number;
}

/** What a step shows of an image, or of one frame of a video. */
export class Frame {
  #change: Change | undefined;
  constructor(
    readonly given: Tensor,
    readonly pixels: Tensor, // of the clean image
    readonly before: Frame | undefined,
  ) {}

  get noisy(): Picture {
    return pictureOf(this.given);
  }
  get clean(): Picture {
    return pictureOf(this.pixels);
  }
  get change(): Change | null {
    return this.before ? (this.#change ??= changeOf(this.pixels, this.before.pixels)) : null;
  }
}

/** The codes of a picture, and the log-probability of each. */
export interface Choices {
  codes: Numbers;
  logprobs: Numbers;
}

export class Film {
  steps = $state.raw<Frame[][]>([]); // the frames of each step with pictures
  choices = $state.raw<Choices | null>(null); // null: not a film of codes, or not all of them are chosen
  running = $state(false);
  problem = $state.raw<Problem | null>(null);
  #request = 0;
  #trace: TraceInfo | null = null;

  /** Load the film of a trace from its first step. */
  open(trace: TraceInfo | null): void {
    this.stop();
    this.#trace = trace;
    this.steps = [];
    this.choices = null;
    this.problem = null;
    void this.resume();
  }

  get #outcome(): DrawOutcome | undefined {
    return this.#trace?.outcome as DrawOutcome | undefined;
  }

  /** The last step that can be shown; -1 if there is none. */
  get last(): number {
    const shown = this.steps.length - 1; // read first, so that what depends on it follows
    return this.#outcome?.pictures[shown] ?? -1;
  }

  /** The pictures of a step, or the last ones before it that are there; those of codes are uncovered step by step. */
  at(step: number): Frame[] {
    return (this.#outcome?.codes ? undefined : this.steps[step]) ?? this.steps[this.steps.length - 1];
  }

  /** Load the steps that are missing, one after another. */
  async resume(): Promise<void> {
    const trace = this.#trace;
    if (!trace || this.running) return;
    const request = ++this.#request;
    const { pictures, codes } = trace.outcome as DrawOutcome;
    this.running = true;
    this.problem = null;
    try {
      const read = (step: number, name: string) => session.source.tensor(trace.id, `step.${step}.${name}`);
      for (let steps = this.steps; steps.length < pictures.length;) {
        const both = await read(pictures[steps.length], 'frames');
        if (request !== this.#request) return;
        steps = [...steps, framesOf(both, steps.at(-1))];
        this.steps = steps;
      }
      if (codes) {
        const [chosen, logprobs] = await Promise.all(['codes', 'logprobs'].map((name) => read(this.last, name)));
        if (request === this.#request) this.choices = { codes: chosen.data, logprobs: logprobs.data };
      }
    } catch (error) {
      if (request === this.#request) this.problem = describe(error);
    }
    if (request === this.#request) this.running = false;
  }

  stop(): void {
    this.#request++;
    this.running = false;
  }
}

function framesOf(both: Tensor, before: Frame[] | undefined): Frame[] {
  const [given, clean] = [both.of(0), both.of(both.shape[0] - 1)].map((x) =>
    x.shape.length === 4 ? Array.from({ length: x.shape[0] }, (_, n) => x.of(n)) : [x],
  );
  return clean.map((pixels, n) => new Frame(given[n], pixels, before?.[n]));
}

/** The mean difference of the color channels; the largest one is drawn white. */
function changeOf(now: Tensor, before: Tensor): Change {
  const [height, width, channels] = now.shape;
  const differences = new Float32Array(height * width);
  now.data.forEach((x, n) => (differences[Math.floor(n / channels)] += Math.abs(x - before.data[n]) / channels / 255));
  const most = extent(differences)[1];
  const mean = differences.reduce((sum, x) => sum + x, 0) / differences.length;
  const grey = Uint8Array.from(differences, (x) => (most ? (255 * x) / most : 0));
  return { picture: pictureOf(new Tensor(grey, [height, width, 1])), mean, most };
}
