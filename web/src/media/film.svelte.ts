// The pictures of a drawing, requested step by step; the server takes a step when its pictures are asked for.

import { describe, type Problem } from '../lib/errors';
import { extent, Tensor } from '../lib/tensor';
import { session } from '../lib/session.svelte';
import type { DrawOutcome, TraceInfo } from '../lib/types';
import { pictureOf, type Picture } from './picture';

export interface Frame {
  noisy: Picture;
  clean: Picture;
  change: { picture: Picture; mean: number; most: number } | null; // shares of the range of colors; null: no step before
  pixels: Tensor; // of the clean image
}

export class Film {
  frames = $state.raw<Frame[]>([]);
  running = $state(false);
  problem = $state.raw<Problem | null>(null);
  #request = 0;
  #trace: TraceInfo | null = null;

  /** Load the film of a trace from its first step. */
  open(trace: TraceInfo | null): void {
    this.stop();
    this.#trace = trace;
    this.frames = [];
    this.problem = null;
    void this.resume();
  }

  /** Load the frames that are missing, one after another. */
  async resume(): Promise<void> {
    const trace = this.#trace;
    if (!trace || this.running) return;
    const request = ++this.#request;
    const count = (trace.outcome as DrawOutcome).timesteps.length;
    this.running = true;
    this.problem = null;
    try {
      for (let frames = this.frames; frames.length <= count;) {
        const both = await session.source.tensor(trace.id, `step.${frames.length}.frames`);
        if (request !== this.#request) return;
        frames = [...frames, frameOf(both, frames.at(-1)?.pixels)];
        this.frames = frames;
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

function frameOf(both: Tensor, before: Tensor | undefined): Frame {
  const pixels = both.of(1);
  return {
    noisy: pictureOf(both.of(0)),
    clean: pictureOf(pixels),
    change: before ? changeOf(pixels, before) : null,
    pixels,
  };
}

/** The mean difference of the color channels; the largest one is drawn white. */
function changeOf(now: Tensor, before: Tensor): Frame['change'] {
  const [height, width, channels] = now.shape;
  const differences = new Float32Array(height * width);
  now.data.forEach((x, n) => (differences[Math.floor(n / channels)] += Math.abs(x - before.data[n]) / channels / 255));
  const most = extent(differences)[1];
  const mean = differences.reduce((sum, x) => sum + x, 0) / differences.length;
  const grey = Uint8Array.from(differences, (x) => (most ? (255 * x) / most : 0));
  return { picture: pictureOf(new Tensor(grey, [height, width, 1])), mean, most };
}
