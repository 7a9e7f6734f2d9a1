// Data that is requested again when what it depends on changes.

import { describe, type Problem } from './errors';
import { connection } from './connection.svelte';
import { session } from './session.svelte';

export class Resource<T> {
  value = $state.raw<T | null>(null);
  problem = $state.raw<Problem | null>(null);
  loading = $state(false);
}

/**
 * Run `ask` whenever what it reads changes, and when the server is back; it returns null if there is nothing to load.
 * The last value stays until the next one arrives, but never longer than the traces it was loaded for. Late answers to
 * earlier requests are ignored. Call it while a component is set up.
 */
export function resource<T>(ask: () => Promise<T> | null): Resource<T> {
  const made = new Resource<T>();
  let asked = 0;
  let traces = '';
  $effect(() => {
    const mine = ++asked;
    void connection.returns;
    const current = `${session.trace?.id} ${session.beside?.id}`;
    if (current !== traces) made.value = null;
    traces = current;
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
