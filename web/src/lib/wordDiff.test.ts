import { expect, it } from 'vitest';
import { wordDiff } from './wordDiff';

const changed = (parts: { text: string; changed: boolean }[]): string[] =>
  parts.filter((part) => part.changed).map((part) => part.text.trim());

it('marks the words that are not in the other text', () => {
  const diff = wordDiff('the old cat sat down', 'the cat sat up');
  expect(changed(diff.before)).toEqual(['old', 'down']);
  expect(changed(diff.after)).toEqual(['up']);
  expect(diff.same).toBe(false);
});

it('keeps both texts complete', () => {
  const [before, after] = ['  a b\nc ', 'b  d'];
  const diff = wordDiff(before, after);
  expect(diff.before.map((part) => part.text).join('')).toBe(before);
  expect(diff.after.map((part) => part.text).join('')).toBe(after);
});

it('finds equal and empty texts the same', () => {
  expect(wordDiff('a b', 'a b').same).toBe(true);
  expect(wordDiff('', '')).toEqual({ before: [], after: [], same: true });
});
