import { expect, test } from 'vitest';
import { boundaries, windowOf } from './windows';

test('a shift moves the boundaries and leaves a smaller window at either end', () => {
  const grid: [number, number] = [10, 6];
  expect(boundaries(10, { size: 4, shift: 0, grid })).toEqual([4, 8]);
  expect(boundaries(10, { size: 4, shift: 2, grid })).toEqual([2, 6]);
  expect(boundaries(6, { size: 4, shift: 2, grid })).toEqual([2]);
});

test('patches that only the cyclic shift joins have windows of their own', () => {
  const windows = { size: 4, shift: 2, grid: [8, 8] as [number, number] };
  const at = (row: number, column: number): number => 8 * row + column;
  expect(windowOf(windows, at(2, 5))).toEqual([2, 2, 4, 4]);
  expect(windowOf(windows, at(5, 2))).toEqual([2, 2, 4, 4]);
  expect(windowOf(windows, at(1, 2))).toEqual([0, 2, 2, 4]);
  expect(windowOf(windows, at(7, 7))).toEqual([6, 6, 2, 2]);
});
