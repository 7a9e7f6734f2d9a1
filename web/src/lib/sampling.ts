// Temperature, top-k and top-p filtering, in the order of the library's logits processors.

import { router } from './router.svelte';
import type { Numbers } from './tensor';

export interface SamplingSettings {
  temperature: number;
  topK: number; // 0: off
  topP: number;
}

/** The settings in the URL. */
export const samplingSettings = (): SamplingSettings => ({
  temperature: Math.max(0.05, Math.min(5, router.number('temp', 1))),
  topK: Math.max(0, Math.round(router.number('topk', 0))),
  topP: Math.max(0.01, Math.min(1, router.number('topp', 1))),
});

const SIGN = 0x8000_0000;
const HALF = 2 ** 16;

/** Token ids from the highest logit to the lowest. The settings never change this order, so it is computed once. */
export function sortDescending(logits: Numbers): Uint32Array {
  // A radix sort by the bits of the floats, flipped so that they rise as the logit falls, in two passes of 16 bits. It
  // sorts a vocabulary of 50,000 in a few milliseconds.
  const keys = new Uint32Array(Float32Array.from(logits).buffer);
  for (let i = 0; i < keys.length; i++) keys[i] = keys[i] & SIGN ? keys[i] : ~keys[i] & ~SIGN;
  let order = Uint32Array.from(keys.keys());
  for (const shift of [0, 16]) {
    const offsets = new Uint32Array(HALF + 1);
    for (const key of keys) offsets[((key >>> shift) % HALF) + 1]++;
    for (let n = 0; n < HALF; n++) offsets[n + 1] += offsets[n];
    const sorted = new Uint32Array(order.length);
    for (const i of order) sorted[offsets[(keys[i] >>> shift) % HALF]++] = i;
    order = sorted;
  }
  return order;
}

/** The distribution that the next token is sampled from; all tokens by rank. */
export interface SampledDistribution {
  probabilities: Float64Array; // after the temperature, before filtering
  candidates: number; // how many of the first remain after top-k and top-p
  mass: number; // the sum of their probabilities
}

export function applySampling(
  logits: Numbers,
  order: Uint32Array,
  { temperature, topK, topP }: SamplingSettings,
): SampledDistribution {
  const count = order.length;
  const probabilities = new Float64Array(count);
  const max = logits[order[0]];
  let sum = 0;
  for (let r = 0; r < count; r++) sum += probabilities[r] = Math.exp((logits[order[r]] - max) / temperature);
  for (let r = 0; r < count; r++) probabilities[r] /= sum;
  let candidates = count;
  if (topK > 0 && topK < count) {
    candidates = topK;
    while (candidates < count && logits[order[candidates]] === logits[order[topK - 1]]) candidates++; // keep ties
  }
  if (topP < 1) {
    let total = 0;
    for (let r = 0; r < candidates; r++) total += probabilities[r];
    let cumulative = 0;
    let n = 0;
    while (n < candidates && (n === 0 || cumulative / total < topP)) cumulative += probabilities[n++];
    candidates = n;
  }
  let mass = 0;
  for (let r = 0; r < candidates; r++) mass += probabilities[r];
  return { probabilities, candidates, mass };
}

/** The rank of a sampled token. `random` lies in [0, 1). */
export function sampleRank({ probabilities, candidates, mass }: SampledDistribution, random: number): number {
  let rest = random * mass;
  for (let rank = 0; rank < candidates; rank++) {
    rest -= probabilities[rank];
    if (rest < 0) return rank;
  }
  return candidates - 1;
}
