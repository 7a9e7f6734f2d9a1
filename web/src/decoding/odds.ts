// What a row of logits means for the next word under temperature, top-k and top-p, worked out over the whole
// vocabulary in the order the library applies them, so that what is shown is what would be drawn.

export interface Shape {
  temperature: number;
  topK: number; // 0 keeps all
  topP: number; // 1 keeps all
}

/** Token ids from the likeliest down; temperature never changes this order, so it is found once for a row. */
export function ranked(logits: ArrayLike<number>): Uint32Array {
  const order = new Uint32Array(logits.length);
  for (let i = 0; i < order.length; i++) order[i] = i;
  return order.sort((a, b) => logits[b] - logits[a] || a - b);
}

export interface Odds {
  /** Of the best `kept` tokens, in ranked order: what each would be drawn with. They sum to 1. */
  kept: number;
  /** Before anything is cut, after the temperature: the share of the whole that the kept ones hold. */
  mass: number;
  /** Probability of the token of a rank before the cut. */
  before(rank: number): number;
  /** Probability of the token of a rank after the cut; 0 where it was cut. */
  after(rank: number): number;
}

export function odds(logits: ArrayLike<number>, order: Uint32Array, shape: Shape): Odds {
  const most = logits[order[0]];
  const weight = (rank: number): number => Math.exp((logits[order[rank]] - most) / shape.temperature);
  let whole = 0;
  for (let rank = 0; rank < order.length; rank++) whole += weight(rank);
  let kept = order.length;
  if (shape.topK > 0 && shape.topK < kept) {
    kept = shape.topK;
    while (kept < order.length && logits[order[kept]] === logits[order[kept - 1]]) kept++; // equals of the last stay
  }
  let held = 0;
  for (let rank = 0; rank < kept; rank++) held += weight(rank);
  if (shape.topP < 1) {
    let sum = 0;
    let n = 0;
    while (n < kept && sum < shape.topP * held) sum += weight(n++);
    kept = Math.max(1, n);
    held = sum;
  }
  return {
    kept,
    mass: held / whole,
    before: (rank) => weight(rank) / whole,
    after: (rank) => (rank < kept ? weight(rank) / held : 0),
  };
}

/** A token drawn by its chance: its rank. `chance` lies in [0, 1). */
export function drawn(of: Odds, chance: number): number {
  let left = chance;
  for (let rank = 0; rank < of.kept; rank++) {
    left -= of.after(rank);
    if (left < 0) return rank;
  }
  return of.kept - 1;
}
