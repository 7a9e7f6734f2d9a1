import { expect, it } from 'vitest';
import { extent, Tensor } from './tensor';

const tensor = new Tensor(
  Float32Array.from({ length: 24 }, (_, i) => i),
  [2, 3, 4],
);

it('indexes row-major', () => {
  expect(tensor.at(1, 2, 3)).toBe(23);
  expect([...tensor.of(1).of(0).data]).toEqual([12, 13, 14, 15]);
  expect([...tensor.mean().of(0).data]).toEqual([6, 7, 8, 9]);
});

it('slices like the server', () => {
  const part = tensor.slice('1,:,1:4:2');
  expect([part.shape, [...part.data]]).toEqual([
    [3, 2],
    [13, 15, 17, 19, 21, 23],
  ]);
});

it('pools by the maximum', () => {
  const part = tensor.pooled(2);
  expect([part.shape, [...part.data]]).toEqual([
    [2, 2, 2],
    [5, 7, 9, 11, 17, 19, 21, 23],
  ]);
});

it('ignores infinities in the extent', () => {
  expect(extent([-Infinity, 2, -1])).toEqual([-1, 2]);
  expect(extent([NaN])).toEqual([0, 0]);
});
