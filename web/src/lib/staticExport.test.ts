import { expect, test } from 'vitest';
import { attentionMatrix } from './staticExport';
import { Tensor } from './tensor';

test('attention matrices are computed from queries and keys', () => {
  const q = new Tensor(Float32Array.of(1, 0, 0, 2, 3, 1, 1, 1), [1, 2, 2, 2]);
  const k = new Tensor(Float32Array.of(1, 2, 0, 1), [1, 1, 2, 2]); // both heads share it
  expect([...attentionMatrix(q, k, 0.5, 'dot').data]).toEqual([1, 0, 4, 2, 5, 1, 3, 1]);
  expect([...attentionMatrix(q, k, 0.5, 'masked').data]).toEqual([0.5, 0, 2, 1, 2.5, 0.5, 1.5, 0.5]);
  const weights = attentionMatrix(q, k, 0.5, 'weights');
  expect(weights.shape).toEqual([1, 2, 2, 2]);
  expect(weights.at(0, 1, 1, 0)).toBeCloseTo(1 / (1 + Math.exp(-1)), 6);
});
