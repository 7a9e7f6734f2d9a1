import { expect, test } from 'vitest';
import { pairOf, probabilities, textsOf } from './pairs';
import type { ModelInfo } from './types';

const model = {
  example: { image: 'a', text: 'one' },
  examples: [
    { image: 'a', text: 'one' },
    { image: 'b', text: 'two' },
  ],
} as unknown as ModelInfo;

test('texts are lines without blanks and repeats; a pair that does not exist is the first', () => {
  expect(textsOf({ in: ' cat \n\ndog\ncat' }, model)).toEqual(['cat', 'dog']);
  expect(textsOf({}, model)).toEqual(['one', 'two']);
  expect(pairOf({ pair: '1.1' }, model)).toEqual([1, 1]);
  expect(pairOf({ pair: '7.x' }, model)).toEqual([0, 0]);
});

test('a softmax over the texts or a sigmoid of each, sharper at a low temperature', () => {
  const info = { cosines: [[0.2, 0.1]], scale: 10, bias: 0, activation: 'softmax' as const };
  const [first, second] = probabilities(info, 0);
  expect(first / second).toBeCloseTo(Math.E);
  expect(probabilities(info, 0, 0.5)[0]).toBeGreaterThan(first);
  const each = probabilities({ ...info, bias: -2, activation: 'sigmoid' }, 0);
  expect(each[0]).toBeCloseTo(0.5);
});
