// A run that is polled every two seconds while it trains.

import { describe, type Problem, session } from '../lib';
import type { RunSnapshots, RunInfo } from '../lib/types';

const EVERY = 2000; // milliseconds

export class LiveRun {
  run = $state.raw<RunInfo | null>(null);
  film = $state.raw<RunSnapshots | null>(null);
  filming = $state(false);
  problem = $state.raw<Problem | null>(null);

  /** Create it while a component is set up; it follows what the functions read. */
  constructor(id: () => string | null, text: () => string | undefined) {
    $effect(() => {
      const now = id();
      if (now === null) return;
      this.run = null;
      let timer: ReturnType<typeof setTimeout>;
      let left = false;
      let failed = false; // the last time
      const ask = async (): Promise<void> => {
        try {
          const run = await session.source.run(now);
          if (left) return;
          if (failed) this.problem = null;
          failed = false;
          this.run = run;
          if (run.running) timer = setTimeout(() => void ask(), EVERY);
        } catch (error) {
          if (left) return;
          failed = true;
          this.problem = describe(error);
          timer = setTimeout(() => void ask(), 2 * EVERY);
        }
      };
      void ask();
      return () => {
        left = true;
        clearTimeout(timer);
      };
    });

    // Requested again for another run, another text and each new checkpoint; the old data stays visible meanwhile.
    const kept = $derived(JSON.stringify(this.run && [this.run.id, this.run.checkpoints.map((one) => one.step)]));
    let shown: string | null = null;
    $effect(() => {
      const now = id();
      const given = text();
      const found = JSON.parse(kept) as [string, number[]] | null;
      if (now === null || found === null || found[0] !== now) return;
      if (shown !== now) this.film = null;
      shown = now;
      if (!found[1].length) return;
      let left = false;
      this.filming = true;
      session.source.snapshots(now, given === undefined ? {} : { text: given }).then(
        (film) => {
          if (left) return;
          this.film = film;
          this.problem = null;
          this.filming = false;
        },
        (error: unknown) => {
          if (left) return;
          this.problem = describe(error);
          this.filming = false;
        },
      );
      return () => (left = true);
    });
  }
}
