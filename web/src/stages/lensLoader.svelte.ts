// Loads the logit lens position by position, so that each shows as soon as it arrives and other requests are not
// delayed.

import { untrack } from 'svelte';
import { describe, type Problem } from '../lib/errors';
import { session } from '../lib/session.svelte';
import { collect, ownShown } from '../lib/shown.svelte';
import type { LensInfo } from '../lib/types';

/** Create it while a component is set up. */
export class LensLoader {
  found = $state.raw<ReadonlyMap<number, LensInfo>>(new Map());
  problem = $state.raw<Problem | null>(null);
  #shown = ownShown();
  #trace = '';

  /** Load these positions in this order; returns a function that stops it. */
  ask(trace: string, places: number[]): () => void {
    if (trace !== this.#trace) {
      this.#trace = trace;
      this.found = new Map();
    }
    let stopped = false;
    void (async () => {
      for (const place of places) {
        if (untrack(() => this.found.has(place))) continue; // no dependency: an answer must not restart the loop
        try {
          const [answer, requests] = collect(() => session.source.lens(trace, place, 5));
          if (place === places[0]) this.#shown.set(this, requests);
          const lens = await answer;
          if (stopped || trace !== this.#trace) return;
          this.found = new Map(this.found).set(place, lens);
          this.problem = null;
        } catch (error) {
          if (!stopped) this.problem = describe(error);
          return;
        }
      }
    })();
    return () => (stopped = true);
  }
}
