// The probability of each generated token at the step that generated it.

import { session } from '../lib/session.svelte';
import type { TraceInfo } from '../lib/types';
import type { Generation } from './generation';

export interface TokenProbability {
  value: number; // the probability
  first: boolean; // the most likely token of its step
}

// The probability of a token does not depend on later tokens, so it stays valid as the text grows.
const cache = new Map<string, Promise<TokenProbability>>();
const CACHE_SIZE = 5000;
// Two requests at a time, so that a long text does not block what the user is waiting for.
const lanes: Promise<unknown>[] = [Promise.resolve(), Promise.resolve()];

/** The probabilities of all generated tokens. */
export function tokenProbabilities(trace: TraceInfo, generation: Generation): Promise<TokenProbability[]> {
  const { target: _, ...input } = trace.input;
  let before = `${trace.model} ${JSON.stringify(input)} ${JSON.stringify(trace.interventions)}`;
  return Promise.all(
    generation.ids.map((id, n) => {
      before += ` ${id}`;
      let probability = cache.get(before);
      if (!probability) {
        const key = before;
        probability = lanes[n % lanes.length].then(() => probabilityAt(trace.id, generation.start + n - 1, id));
        lanes[n % lanes.length] = probability.catch(() => cache.delete(key));
        cache.set(key, probability);
        if (cache.size > CACHE_SIZE) cache.delete(cache.keys().next().value!);
      }
      return probability;
    }),
  );
}

async function probabilityAt(trace: string, position: number, id: number): Promise<TokenProbability> {
  if (position < 0) return { value: NaN, first: true }; // the first token of an empty prompt
  const next = await session.source.next(trace, position, 1);
  const logit = (await session.source.tensor(trace, next.logits, { slice: `0,${position},${id}` })).data[0];
  return { value: Math.exp(logit - next.logsumexp), first: next.predictions[0].id === id };
}
