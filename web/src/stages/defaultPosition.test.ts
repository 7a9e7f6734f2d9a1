import { expect, test } from 'vitest';
import type { TokenSequence } from '../lib/types';
import { defaultPosition, leastCertain } from './defaultPosition';

const text = (...pieces: string[]): TokenSequence => ({
  name: 'source',
  kind: 'text',
  text: null,
  grid: null,
  prefix: 0,
  tokens: pieces.map((piece) => ({
    id: 0,
    piece,
    raw: piece,
    start: null,
    end: null,
    bytes: null,
    special: /^[<[>]/.test(piece),
  })),
});

test('a text opens on its last word, not on a language tag, punctuation or the end token', () => {
  expect(defaultPosition(text('>>de<<', ' She', ' was', ' hot', '.', '</s>'))).toBe(3);
  expect(defaultPosition(text('>>en<<', ' 영화를', ' 봤', '어요', '</s>'))).toBe(3);
  expect(defaultPosition(text('</s>'))).toBe(0);
});

test('a text with a mask opens on the mask', () => {
  expect(defaultPosition(text('[CLS]', ' Paris', ' is', '[MASK]', '.', '[SEP]'))).toBe(3);
});

test('an image opens at its center and a series on its last patch', () => {
  const patches = text(...Array<string>(17).fill('1,1'));
  expect(defaultPosition({ ...patches, kind: 'patches', grid: [4, 4], prefix: 1 })).toBe(11);
  expect(defaultPosition({ ...patches, kind: 'series' })).toBe(16);
});

test('the least certain step is the one with the smallest probability after the start', () => {
  expect(leastCertain([0.1, 0.9, 0.4, 0.8], 1)).toBe(2);
});
