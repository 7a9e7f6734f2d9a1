// Which chances moved most between two rows of logits.

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
  const apart = (one: ProbabilityChange): number => Math.abs(one.after - one.before);
  let least = -1;
  for (let id = 0; id < before.length; id++) {
    const [was, is] = [Math.exp(before[id] - sumBefore), Math.exp(after[id] - sumAfter)];
    const far = Math.abs(is - was);
    if (best.length >= count && far <= least) continue;
    let at = best.length;
    while (at > 0 && apart(best[at - 1]) < far) at--;
    best.splice(at, 0, { id, before: was, after: is });
    if (best.length > count) best.pop();
    least = apart(best[best.length - 1]);
  }
  return best;
}
