// What each figure shows: the requests of the component that contains it, from which its data can be downloaded and
// its Python code is written. Requests are noted by the session's source; `resource` collects those of a component.

import { getAllContexts, getContext, setContext, untrack } from 'svelte';
import type { Source } from './source';
import type { TraceInfo } from './types';

export type Request = { [M in keyof Source]: { method: M; args: unknown[] } }[keyof Source];

/** The traces of this page by id, which name the inputs of requests. */
export const knownTraces = new Map<string, TraceInfo>();

let collecting: Request[] | null = null;

/** Run `load` and return the requests that it makes before it first waits. */
export function collect<T>(load: () => T): [T, Request[]] {
  const before = collecting;
  const requests: Request[] = (collecting = []);
  try {
    return [load(), requests];
  } finally {
    collecting = before;
  }
}

/** A source that notes every request. */
export const noted = (source: Source): Source =>
  new Proxy(source, {
    get(target, method: keyof Source) {
      const value = target[method];
      if (typeof value !== 'function') return value;
      return (...args: unknown[]) => {
        collecting?.push({ method, args } as Request);
        const answer = (value as (...args: unknown[]) => unknown).apply(target, args);
        if (method === 'trace')
          void (answer as Promise<TraceInfo>).then(
            (one) => knownTraces.set(one.id, one),
            () => {},
          );
        return answer;
      };
    },
  });

/** The requests of a component, by resource. */
class Shown {
  #of = $state.raw(new Map<object, Request[]>());
  requests: Request[] = $derived([...this.#of.values()].flat());

  set(resource: object, requests: Request[]): void {
    untrack(() => (this.#of = new Map(this.#of).set(resource, requests))); // in an effect: no dependency on itself
  }
}

const KEY = Symbol();

/** The requests of the nearest component around a figure that makes some. */
export const nearestShown = (): Shown | undefined => getContext<{ shown: Shown } | undefined>(KEY)?.shown;

/** The requests of the component that is being set up. */
export function ownShown(): Shown {
  const contexts = getAllContexts(); // a map of this component
  const nearest = getContext<{ shown: Shown; owner: unknown } | undefined>(KEY);
  if (nearest?.owner === contexts) return nearest.shown;
  return setContext(KEY, { shown: new Shown(), owner: contexts }).shown;
}
