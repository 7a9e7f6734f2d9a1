// The pictures of a drawing, requested step by step; the server takes a step when its pictures are asked for.

import { describe, type Problem } from '../lib/errors';
import { extent, Tensor } from '../lib/tensor';
import { session } from '../lib/session.svelte';
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

export class Film {
  steps = $state.raw<Frame[][]>([]); // the frames of each step
  running = $state(false);
  problem = $state.raw<Problem | null>(null);
  #request = 0;
  #trace: TraceInfo | null = null;

  /** Load the film of a trace from its first step. */
  open(trace: TraceInfo | null): void {
    this.stop();
    this.#trace = trace;
    this.steps = [];
    this.problem = null;
    void this.resume();
  }

  /** Load the steps that are missing, one after another. */
  async resume(): Promise<void> {
    const trace = this.#trace;
    if (!trace || this.running) return;
    const request = ++this.#request;
    const count = (trace.outcome as DrawOutcome).timesteps.length;
    this.running = true;
    this.problem = null;
    try {
      for (let steps = this.steps; steps.length <= count;) {
        const both = await session.source.tensor(trace.id, `step.${steps.length}.frames`);
        if (request !== this.#request) return;
        steps = [...steps, framesOf(both, steps.at(-1))];
        this.steps = steps;
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
  const [given, clean] = [both.of(0), both.of(1)].map((x) =>
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
