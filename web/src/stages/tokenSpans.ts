// Splits a text into spans covered by the same tokens.

import type { TraceToken } from '../lib/types';

export interface TokenSpan {
  text: string;
  tokens: number[]; // that cover it: none, one, or several that share the bytes of a character
}

/** Positions count code points, not UTF-16 units. */
export function tokenSpans(text: string, tokens: TraceToken[]): TokenSpan[] {
  const letters = [...text];
  const covering: number[][] = letters.map(() => []);
  tokens.forEach((token, n) => {
    if (token.start === null || token.end === null) return;
    for (let at = token.start; at < Math.min(token.end, letters.length); at++) covering[at].push(n);
  });
  const found: TokenSpan[] = [];
  letters.forEach((letter, at) => {
    const last = found[found.length - 1];
    if (last && String(last.tokens) === String(covering[at])) last.text += letter;
    else found.push({ text: letter, tokens: covering[at] });
  });
  return found;
}
