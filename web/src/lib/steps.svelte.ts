// Requests that run one after another, with progress, and can be stopped.

import { describe, type Problem } from './errors';
import { collect, ownShown } from './shown.svelte';

/** Create it while a component is set up. */
export class Steps {
  running = $state(false);
  done = $state(0);
  total = $state(0);
  problem = $state.raw<Problem | null>(null);
  #shown = ownShown();
  #turn = 0;

  stop(): void {
    this.#turn++;
    this.running = false;
  }

  /** Run all; `take` gets each answer in order. A newer run stops this one. */
  async run<T>(jobs: (() => Promise<T>)[], take: (answer: T, n: number) => void): Promise<void> {
    const turn = ++this.#turn;
    this.total = jobs.length;
    this.done = 0;
    this.problem = null;
    this.running = true;
    const asked = [];
    try {
      for (const [n, job] of jobs.entries()) {
        const [promise, requests] = collect(job);
        const answer = await promise;
        if (turn !== this.#turn) return;
        asked.push(...requests);
        this.done = n + 1;
        take(answer, n);
      }
      this.#shown.set(this, asked);
    } catch (error) {
      if (turn === this.#turn) this.problem = describe(error);
    } finally {
      if (turn === this.#turn) this.running = false;
    }
  }
}
