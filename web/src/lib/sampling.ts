// Logits to probabilities as the library shapes them before it draws: temperature, then top-k, then top-p.

import { router } from './router.svelte';
import type { Numbers } from './tensor';

export interface SamplingSettings {
  temperature: number;
  topK: number /* 0 is off */;
  topP: number;
}

/** What the reader has set, as the address says it. */
export const samplingSettings = (): SamplingSettings => ({
  temperature: Math.max(0.05, Math.min(5, router.number('temp', 1))),
  topK: Math.max(0, Math.round(router.number('topk', 0))),
  topP: Math.max(0.01, Math.min(1, router.number('topp', 1))),
});

const SIGN = 0x8000_0000;
const HALF = 2 ** 16;

/** Indices from the highest logit to the lowest. No shaping changes this order, so it is worked out once. */
export function sortDescending(logits: Numbers): Uint32Array {
  // By counting, not comparing: a logit's bits, turned so that they rise as it falls, are sorted by their lower half
  // and then by their upper half. A vocabulary of 50,000 is in order within a few milliseconds.
  const keys = new Uint32Array(Float32Array.from(logits).buffer);
  for (let i = 0; i < keys.length; i++) keys[i] = keys[i] & SIGN ? keys[i] : ~keys[i] & ~SIGN;
  let order = Uint32Array.from(keys.keys());
  for (const shift of [0, 16]) {
    const begins = new Uint32Array(HALF + 1);
    for (const key of keys) begins[((key >>> shift) % HALF) + 1]++;
    for (let n = 0; n < HALF; n++) begins[n + 1] += begins[n];
    const sorted = new Uint32Array(order.length);
    for (const i of order) sorted[begins[(keys[i] >>> shift) % HALF]++] = i;
    order = sorted;
  }
  return order;
}

export interface SampledDistribution {
  heated: Float64Array; // probabilities under the temperature alone, in sortDescending order
  kept: number; // how many of the first are left
  mass: number; // what those had together
}

export function applySampling(
  logits: Numbers,
  order: Uint32Array,
  { temperature, topK, topP }: SamplingSettings,
): SampledDistribution {
  const count = order.length;
  const heated = new Float64Array(count);
  const most = logits[order[0]];
  let sum = 0;
  for (let r = 0; r < count; r++) sum += heated[r] = Math.exp((logits[order[r]] - most) / temperature);
  for (let r = 0; r < count; r++) heated[r] /= sum;
  let kept = count;
  if (topK > 0 && topK < count) {
    kept = topK;
    while (kept < count && logits[order[kept]] === logits[order[topK - 1]]) kept++; // equals of the last stay
  }
  if (topP < 1) {
    let among = 0;
    for (let r = 0; r < kept; r++) among += heated[r];
    let reached = 0;
    let n = 0;
    while (n < kept && (n === 0 || reached / among < topP)) reached += heated[n++];
    kept = n;
  }
  let mass = 0;
  for (let r = 0; r < kept; r++) mass += heated[r];
  return { heated, kept, mass };
}
