// Places tokens in lines in the diagram: as many as fit, then the number of the rest.

import { visibleText } from '../components/tokenText';
import type { TraceToken } from '../lib/types';

export interface Chip {
  n: number; // which token
  text: string;
  x: number;
  y: number;
  w: number;
  special: boolean;
}
export interface Chips {
  chips: Chip[];
  left: number; // number of tokens that did not fit
  height: number;
}

export const CHIP = 21;
const GAP = 4;
const PAD = 6;
const FONT = '11px ui-monospace, "SF Mono", "Cascadia Mono", "Noto Sans Mono", Menlo, Consolas, monospace';

let context: CanvasRenderingContext2D | null = null;
const widths = new Map<string, number>();

function width(text: string): number {
  let known = widths.get(text);
  if (known === undefined) {
    context ??= document.createElement('canvas').getContext('2d');
    if (!context) return 7 * text.length;
    context.font = FONT;
    known = context.measureText(text).width;
    if (widths.size > 5000) widths.clear();
    widths.set(text, known);
  }
  return known;
}

/** Lay out tokens in centered lines. */
export function layoutTokens(tokens: TraceToken[], room: number, lines: number): Chips {
  const made: Chip[][] = [[]];
  let x = 0;
  let shown = 0;
  for (const [n, token] of tokens.entries()) {
    let text = visibleText(token.piece.trim() || token.piece);
    if (text.length > 16) text = `${text.slice(0, 15)}…`;
    const w = Math.min(room, Math.max(CHIP - 5, width(text) + 2 * PAD));
    const last = made.length === lines;
    const kept = last && n < tokens.length - 1 ? 58 : 0; // room for "+12 more"
    if (x > 0 && x + w > room - kept) {
      if (last) break;
      made.push([]);
      x = 0;
    }
    made.at(-1)!.push({ n, text, x, y: (made.length - 1) * (CHIP + GAP), w, special: token.special });
    x += w + GAP;
    shown++;
  }
  const left = tokens.length - shown;
  for (const [n, line] of made.entries()) {
    const end = line.at(-1);
    if (!end) continue;
    const wide = end.x + end.w + (left && n === made.length - 1 ? 58 : 0);
    for (const chip of line) chip.x += (room - wide) / 2;
  }
  return { chips: made.flat(), left, height: made.length * (CHIP + GAP) - GAP };
}
