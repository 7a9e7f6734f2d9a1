// The score of a finished beam.

import type { SearchInfo } from '../lib/types';
import type { Node } from './treeLayout';

/** The sum of log-probabilities, normalized by length. */
export const finalScore = (node: Node): number => node.score / node.length_term;

/** The length normalization for `count` tokens, as TeX. */
export function lengthTerm(info: SearchInfo, count: number): string {
  const penalty = Number(info.length_penalty.toFixed(3));
  return info.score_formula.includes('5 + n')
    ? `\\left(\\frac{5+${count}}{6}\\right)^{${penalty}}`
    : `${count}^{${penalty}}`;
}
