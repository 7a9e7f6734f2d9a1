import { expect, test } from 'vitest';
import { attentionMatrix, evaluate, unpack } from './staticExport';
import { Tensor } from './tensor';

const vector = (...x: number[]): Tensor => new Tensor(Float32Array.of(...x), [1, x.length]);

test('attention matrices are computed from queries and keys', () => {
  const q = new Tensor(Float32Array.of(1, 0, 0, 2, 3, 1, 1, 1), [1, 2, 2, 2]);
  const k = new Tensor(Float32Array.of(1, 2, 0, 1), [1, 1, 2, 2]); // both heads share it
  const formula = { scale: 0.5, softcap: null };
  expect([...attentionMatrix(q, k, 'dot', formula).data]).toEqual([1, 0, 4, 2, 5, 1, 3, 1]);
  expect([...attentionMatrix(q, k, 'masked', formula).data]).toEqual([0.5, 0, 2, 1, 2.5, 0.5, 1.5, 0.5]);
  const weights = attentionMatrix(q, k, 'weights', formula);
  expect(weights.shape).toEqual([1, 2, 2, 2]);
  expect(weights.at(0, 1, 1, 0)).toBeCloseTo(1 / (1 + Math.exp(-1)), 6);

  const mask = new Tensor(Uint8Array.of(1, 0, 0, 0), [1, 1, 2, 2]); // the second query may attend to nothing
  const bias = new Tensor(Float32Array.of(0, 0, 0, 0, 1, 2, 3, 4), [1, 2, 2, 2]);
  expect([...attentionMatrix(q, k, 'scaled', formula, mask, bias).data].slice(4)).toEqual([3.5, 2.5, 4.5, 4.5]);
  expect([...attentionMatrix(q, k, 'masked', formula, mask).data].slice(0, 4)).toEqual([
    0.5,
    ...Array(3).fill(-Infinity),
  ]);
  expect([...attentionMatrix(q, k, 'weights', formula, mask).data].slice(0, 4)).toEqual([1, 0, 0, 0]);
  const capped = attentionMatrix(q, k, 'scaled', { scale: 0.5, softcap: 2 });
  expect(capped.data[4]).toBeCloseTo(2 * Math.tanh(2.5 / 2), 6);
});

test('numbers of 16 and 32 bits are unpacked', () => {
  // 1, -2, 65504, the smallest number above 0, infinity: low bytes, then high bytes
  const half = Uint8Array.of(0, 0, 0xff, 1, 0, 0x3c, 0xc0, 0x7b, 0, 0x7c);
  expect([...unpack(half, 'float16')]).toEqual([1, -2, 65504, 2 ** -24, Infinity]);
  const bytes = new Uint8Array(Float32Array.of(0.1, -3).buffer);
  const planes = Uint8Array.from({ length: 8 }, (_, n) => bytes[(n % 2) * 4 + (n >> 1)]);
  expect([...unpack(planes, 'float32')]).toEqual([Math.fround(0.1), -3]);
});

test('tensors are computed from those that are stored', () => {
  expect([...evaluate({ of: 'sum', from: [] }, [vector(1, 2), vector(3, 4), vector(5, 6)]).data]).toEqual([9, 12]);
  expect([...evaluate({ of: 'relu', from: [] }, [vector(-1, 2), vector(3, 4)]).data]).toEqual([0, 8]); // gated
  expect(evaluate({ of: 'gelu', from: [] }, [vector(1)]).data[0]).toBeCloseTo(0.8413447, 6);
  const norm = evaluate({ of: 'layer_norm', from: [], eps: 0 }, [vector(1, 3), vector(2, 2), vector(0, 1)]);
  expect([...norm.data]).toEqual([-2, 3]);
  const rms = evaluate({ of: 'rms_norm', from: [], eps: 0 }, [vector(3, 4), vector(1, 1)]);
  expect(rms.data[0]).toBeCloseTo(3 / Math.sqrt(12.5), 6);
  const weights = new Tensor(Float32Array.of(0.25, 0.75, 1, 0), [1, 2, 1, 2]);
  const v = new Tensor(Float32Array.of(4, 8), [1, 1, 2, 1]); // shared by both heads
  expect([...evaluate({ of: 'heads', from: [] }, [weights, v]).data]).toEqual([7, 4]);
});
