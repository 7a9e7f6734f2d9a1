// A token drawn by its chance among those that are left.

import type { SampledDistribution } from '../lib/sampling';

/** The rank of the token drawn. `chance` lies in [0, 1). */
export function drawn(shaped: SampledDistribution, chance: number): number {
  let left = chance * shaped.mass;
  for (let rank = 0; rank < shaped.kept; rank++) {
    left -= shaped.heated[rank];
    if (left < 0) return rank;
  }
  return shaped.kept - 1;
}
