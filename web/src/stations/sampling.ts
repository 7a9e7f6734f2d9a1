// Logits to probabilities as the library shapes them before it draws: temperature, then top-k, then top-p.

import type { Numbers } from '../lib/tensor';

export interface Shaping { temperature: number; topK: number /* 0 is off */; topP: number }

/** Indices from the highest logit to the lowest. No shaping changes this order, so it is worked out once. */
export function falling(logits: Numbers): Uint32Array {
  const order = new Uint32Array(logits.length);
  for (let i = 0; i < order.length; i++) order[i] = i;
  return order.sort((a, b) => logits[b] - logits[a]);
}

export interface Shaped {
  heated: Float64Array; // probabilities under the temperature alone, in falling order
  kept: number; // how many of the first are left
  mass: number; // what those had together
}

export function shaped(logits: Numbers, order: Uint32Array, { temperature, topK, topP }: Shaping): Shaped {
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
