import { expect, test } from 'vitest';
import { boundaries, shareWindow } from './windows';

test('a shift moves the boundaries and leaves a smaller window at either end', () => {
  const grid: [number, number] = [10, 6];
  expect(boundaries(10, { size: 4, shift: 0, grid })).toEqual([4, 8]);
  expect(boundaries(10, { size: 4, shift: 2, grid })).toEqual([2, 6]);
  expect(boundaries(6, { size: 4, shift: 2, grid })).toEqual([2]);
});

test('patches that only the cyclic shift joins do not share a window', () => {
  const windows = { size: 4, shift: 2, grid: [8, 8] as [number, number] };
  const at = (row: number, column: number): number => 8 * row + column;
  expect(shareWindow(windows, at(2, 2), at(5, 5))).toBe(true);
  expect(shareWindow(windows, at(2, 2), at(1, 2))).toBe(false);
  expect(shareWindow(windows, at(0, 0), at(7, 7))).toBe(false);
  expect(shareWindow(windows, at(0, 3), at(1, 4))).toBe(true);
});
