// The arithmetic that decides a beam search, written out.

import type { SearchInfo } from '../lib/types';
import type { Node } from './treeLayout';

/** A finished text's score: the sum of its log-probabilities over its length term. */
export const finalScore = (node: Node): number => node.score / node.length_term;

/** The length term of a text of so many tokens, as TeX. */
export function lengthTerm(info: SearchInfo, count: number): string {
  const penalty = Number(info.length_penalty.toFixed(3));
  return info.score_formula.includes('5 + n')
    ? `\\left(\\frac{5+${count}}{6}\\right)^{${penalty}}`
    : `${count}^{${penalty}}`;
}
