import { expect, it } from 'vitest';
import { largestChanges } from './probabilityChanges';

const logits = (...probabilities: number[]): number[] => probabilities.map(Math.log);

it('returns the largest changes first', () => {
  const changes = largestChanges(logits(0.5, 0.3, 0.1, 0.1), 0, logits(0.1, 0.35, 0.45, 0.1), 0, 2);
  expect(changes.map((change) => change.id)).toEqual([0, 2]);
  expect(changes[0].before).toBeCloseTo(0.5);
  expect(changes[0].after).toBeCloseTo(0.1);
});

it('normalizes by the log-sum-exp of each row', () => {
  const [change] = largestChanges([1], 1, [1], 1 + Math.log(2), 1);
  expect([change.before, change.after]).toEqual([1, expect.closeTo(0.5)]);
});
