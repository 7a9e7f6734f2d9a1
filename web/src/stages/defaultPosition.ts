// Which token a stage shows before the user picks one.

import type { TokenSequence } from '../lib/types';

/** Whether a token is part of a word: not special, and with a letter or digit. */
export const isWord = (token: TokenSequence['tokens'][number]): boolean =>
  !token.special && /[\p{L}\p{N}]/u.test(token.piece);

/**
 * The first mask of a text with masks, else its last word, which attends to the most in a causal stack; the center of
 * an image; the last patch of a series.
 */
export function defaultPosition(sequence: TokenSequence): number {
  const { tokens, grid, prefix } = sequence;
  if (sequence.kind === 'series') return tokens.length - 1;
  if (grid) return prefix + Math.floor(grid[0] / 2) * grid[1] + Math.floor(grid[1] / 2);
  const mask = tokens.findIndex((token) => token.special && /mask/i.test(token.raw ?? ''));
  return mask >= 0 ? mask : Math.max(0, tokens.findLastIndex(isWord));
}

/** The index of the smallest of these numbers from `first` on. */
export function leastCertain(probabilities: ArrayLike<number>, first: number): number {
  let least = Math.min(first, probabilities.length - 1);
  for (let n = least + 1; n < probabilities.length; n++) if (probabilities[n] < probabilities[least]) least = n;
  return least;
}
