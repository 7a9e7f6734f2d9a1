// Patches of one image in grids of several sizes: the stages of a model merge patches.

import type { TokenSequence, TraceInfo } from '../lib/types';

export const gridOf = (sequence: TokenSequence): [number, number] =>
  sequence.grid ?? [1, sequence.tokens.length - sequence.prefix];

/** The sequences of image patches, from the finest grid to the coarsest. */
export const patchSequences = (trace: TraceInfo): TokenSequence[] =>
  trace.sequences.filter((one) => one.kind === 'patches');

/** The patch of another grid that contains the center of this one; an added token stays what it is. */
export function samePlace(from: TokenSequence, to: TokenSequence, at: number): number {
  const box = from.tokens[at]?.box;
  const size = to.tokens[to.prefix]?.box;
  if (from === to || !box || !size) return at;
  const [rows, columns] = gridOf(to);
  const row = Math.min(rows - 1, Math.floor((box[1] + box[3] / 2) / size[3]));
  const column = Math.min(columns - 1, Math.floor((box[0] + box[2] / 2) / size[2]));
  return to.prefix + row * columns + column;
}
