// Window attention on a grid of patches: where the windows are, and which patches share one.

import type { WindowInfo } from '../lib/types';

/** Where the windows of one axis of a grid begin, except at 0: after `shift`, then every `size` patches. */
export function boundaries(length: number, { size, shift }: WindowInfo): number[] {
  const found: number[] = [];
  for (let at = shift || size; at < length; at += size) found.push(at);
  return found;
}

/** The number of a window along one axis; the patches before the shift form a window of their own, -1. */
const windowAt = (at: number, { size, shift }: WindowInfo): number => Math.floor((at - shift) / size);

/** Whether two patches of the grid, counted row by row, attend to each other. */
export function shareWindow(windows: WindowInfo, one: number, other: number): boolean {
  const columns = windows.grid[1];
  return (
    windowAt(Math.floor(one / columns), windows) === windowAt(Math.floor(other / columns), windows) &&
    windowAt(one % columns, windows) === windowAt(other % columns, windows)
  );
}
