// Something that comes from the source and is asked for again when what it depends on changes.

import { describe, type Problem } from './errors';
import { connection } from './connection.svelte';

export class Resource<T> {
  value = $state.raw<T | null>(null);
  problem = $state.raw<Problem | null>(null);
  loading = $state(false);
}

/**
 * `ask` is run whenever what it reads changes, and when the server is back (return null for nothing to ask); the last value stays on show until
 * the next is there, and a late answer to an older question is let go. Call it while a component is set up.
 */
export function resource<T>(ask: () => Promise<T> | null): Resource<T> {
  const made = new Resource<T>();
  let asked = 0;
  $effect(() => {
    const mine = ++asked;
    void connection.returns;
    const coming = ask();
    if (!coming) {
      made.value = null;
      made.problem = null;
      made.loading = false;
      return;
    }
    made.loading = true;
    coming.then(
      (value) => {
        if (mine !== asked) return;
        made.value = value;
        made.problem = null;
        made.loading = false;
      },
      (error: unknown) => {
        if (mine !== asked) return;
        made.problem = describe(error);
        made.loading = false;
      },
    );
  });
  return made;
}
