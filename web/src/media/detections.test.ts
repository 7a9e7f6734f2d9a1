import { expect, test } from 'vitest';
import { Tensor } from '../lib/tensor';
import { queryBoxes } from './detections';

test('the class "no object" is never a label, and each layer has its own boxes', () => {
  const boxes = new Tensor(Float32Array.from([0, 0, 1, 1, 0, 0, 1, 1, 0, 0.25, 0.5, 0.75, 0.5, 0.5, 1, 1]), [2, 2, 4]);
  const probabilities = new Tensor(
    Float32Array.from([0.5, 0.25, 0.25, 0.5, 0.25, 0.25, 0.125, 0.25, 0.625, 0.75, 0.125, 0.125]),
    [2, 2, 3],
  );
  expect(queryBoxes(boxes, probabilities, 1)).toEqual([
    { query: 0, label: 1, score: 0.25, box: [0, 0.25, 0.5, 0.75] },
    { query: 1, label: 0, score: 0.75, box: [0.5, 0.5, 1, 1] },
  ]);
});
