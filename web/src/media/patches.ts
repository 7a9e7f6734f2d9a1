// Patches of one image in grids of several sizes: the stages of a model merge patches.

import { t } from '../lib/i18n.svelte';
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

type Grid = [number, number]; // rows, columns

/** The patch at a position on an element that shows the grid. */
export function patchAt(event: MouseEvent, grid: Grid): number {
  const box = (event.currentTarget as Element).getBoundingClientRect();
  const cell = (share: number, count: number): number => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
  const row = cell((event.clientY - box.top) / box.height, grid[0]);
  return row * grid[1] + cell((event.clientX - box.left) / box.width, grid[1]);
}

/** The directions of the arrow keys: rows, columns. */
export const ARROWS: Record<string, [number, number]> = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
};

/** Where a patch is, counted from one. */
export const patchName = (patch: number, grid: Grid): string =>
  t('image.patch', { row: Math.floor(patch / grid[1]) + 1, column: (patch % grid[1]) + 1 });
