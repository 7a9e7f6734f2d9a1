// Data that is requested again when what it depends on changes.

import { describe, type Problem } from './errors';
import { connection } from './connection.svelte';
import { session } from './session.svelte';
import { collect, ownShown } from './shown.svelte';

export class Resource<T> {
  value = $state.raw<T | null>(null);
  problem = $state.raw<Problem | null>(null);
  loading = $state(false);
}

/**
 * Run `load` whenever what it reads changes, and when the server is back; it returns null if there is nothing to load.
 * The last value stays until the next one arrives, but never longer than the traces it was loaded for, except with
 * `keep`, which avoids flicker between similar traces. Late answers to earlier requests are ignored. Call it while a
 * component is set up.
 */
export function resource<T>(load: () => Promise<T> | null, { keep = false } = {}): Resource<T> {
  const result = new Resource<T>();
  const shown = ownShown();
  let latest = 0;
  let traces = '';
  $effect(() => {
    const request = ++latest;
    void connection.restored;
    const current = `${session.trace?.id} ${session.comparison?.id}`;
    if (current !== traces && !keep) result.value = null;
    traces = current;
    const [promise, requests] = collect(load);
    shown.set(result, requests);
    if (!promise) {
      result.value = null;
      result.problem = null;
      result.loading = false;
      return;
    }
    result.loading = true;
    promise.then(
      (value) => {
        if (request !== latest) return;
        result.value = value;
        result.problem = null;
        result.loading = false;
      },
      (error: unknown) => {
        if (request !== latest) return;
        result.problem = describe(error);
        result.loading = false;
      },
    );
  });
  return result;
}
