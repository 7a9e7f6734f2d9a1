// How likely each written token was when it was written, and whether another was likelier.

import { session } from '../lib/session.svelte';
import type { TraceInfo } from '../lib/types';
import type { Generation } from './generation';

export interface TokenProbability {
  value: number; // its probability
  first: boolean; // no other token was likelier
}

// A token's chance depends on nothing that comes after it, so what was asked once stays true as the text grows.
const kept = new Map<string, Promise<TokenProbability>>();
const MOST_KEPT = 5000;
// A long text has many tokens: they are asked for two at a time, so that what the reader waits for need not wait too.
const lanes: Promise<unknown>[] = [Promise.resolve(), Promise.resolve()];

/** The chance of every written token, in order. */
export function tokenProbabilities(trace: TraceInfo, written: Generation): Promise<TokenProbability[]> {
  const { target: _, ...input } = trace.input;
  let before = `${trace.model} ${JSON.stringify(input)} ${JSON.stringify(trace.interventions)}`;
  return Promise.all(
    written.ids.map((id, n) => {
      before += ` ${id}`;
      let chance = kept.get(before);
      if (!chance) {
        const key = before;
        chance = lanes[n % lanes.length].then(() => chanceAt(trace.id, written.start + n - 1, id));
        lanes[n % lanes.length] = chance.catch(() => kept.delete(key));
        kept.set(key, chance);
        if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value!);
      }
      return chance;
    }),
  );
}

async function chanceAt(trace: string, position: number, id: number): Promise<TokenProbability> {
  if (position < 0) return { value: NaN, first: true }; // the first token of a text that began with nothing
  const next = await session.source.next(trace, position, 1);
  const logit = (await session.source.tensor(trace, next.logits, { slice: `0,${position},${id}` })).data[0];
  return { value: Math.exp(logit - next.logsumexp), first: next.predictions[0].id === id };
}
