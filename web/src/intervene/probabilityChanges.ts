// The largest changes in probability between two rows of logits.

export interface ProbabilityChange {
  id: number;
  before: number;
  after: number;
}

/** The `count` tokens whose probability changed most, the largest change first. */
export function largestChanges(
  before: ArrayLike<number>,
  sumBefore: number,
  after: ArrayLike<number>,
  sumAfter: number,
  count: number,
): ProbabilityChange[] {
  const best: ProbabilityChange[] = [];
  const size = (change: ProbabilityChange): number => Math.abs(change.after - change.before);
  let least = -1;
  for (let id = 0; id < before.length; id++) {
    const [p, q] = [Math.exp(before[id] - sumBefore), Math.exp(after[id] - sumAfter)];
    const distance = Math.abs(q - p);
    if (best.length >= count && distance <= least) continue;
    let at = best.length;
    while (at > 0 && size(best[at - 1]) < distance) at--;
    best.splice(at, 0, { id, before: p, after: q });
    if (best.length > count) best.pop();
    least = size(best[best.length - 1]);
  }
  return best;
}
