// Window attention on a grid of patches: where the windows are, and the one of a patch.

import type { WindowInfo } from '../lib/types';
import type { Cells } from './overlay';

/** Where the windows of one axis of a grid begin, except at 0: after `shift`, then every `size` patches. */
export function boundaries(length: number, { size, shift }: WindowInfo): number[] {
  const found: number[] = [];
  for (let at = shift || size; at < length; at += size) found.push(at);
  return found;
}

/** The window of a patch of the grid, counted row by row; the patches before the shift form windows of their own. */
export function windowOf({ size, shift, grid }: WindowInfo, patch: number): Cells {
  const along = (at: number, length: number): [number, number] => {
    const start = Math.floor((at - shift) / size) * size + shift;
    return [Math.max(0, start), Math.min(length, start + size) - Math.max(0, start)];
  };
  const [row, rows] = along(Math.floor(patch / grid[1]), grid[0]);
  const [column, columns] = along(patch % grid[1], grid[1]);
  return [row, column, rows, columns];
}
