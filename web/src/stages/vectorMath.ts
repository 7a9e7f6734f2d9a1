// Arithmetic on vectors and rows of matrices.

import { Tensor, type Numbers } from '../lib/tensor';

export interface Moments {
  mean: number;
  deviation: number;
  norm: number;
}

export function moments(x: Numbers): Moments {
  let sum = 0;
  let squares = 0;
  for (let i = 0; i < x.length; i++) {
    sum += x[i];
    squares += x[i] * x[i];
  }
  const mean = sum / x.length;
  return { mean, deviation: Math.sqrt(Math.max(0, squares / x.length - mean * mean)), norm: Math.sqrt(squares) };
}

/** Cosines between all rows of a matrix, (T, D) -> (T, T). */
export function cosines(x: Tensor): Tensor {
  const [count, width] = x.shape;
  const { data } = x;
  const norms = Array.from({ length: count }, (_, n) => moments(x.of(n).data).norm || 1);
  const found = new Float32Array(count * count);
  const whole = width - (width % 4);
  for (let a = 0; a < count; a++) {
    for (let b = 0; b <= a; b++) {
      const [i, j] = [a * width, b * width];
      let [s, t, u, v] = [0, 0, 0, 0]; // four independent sums, for speed
      for (let d = 0; d < whole; d += 4) {
        s += data[i + d] * data[j + d];
        t += data[i + d + 1] * data[j + d + 1];
        u += data[i + d + 2] * data[j + d + 2];
        v += data[i + d + 3] * data[j + d + 3];
      }
      for (let d = whole; d < width; d++) s += data[i + d] * data[j + d];
      found[a * count + b] = found[b * count + a] = (s + t + u + v) / (norms[a] * norms[b]);
    }
  }
  return new Tensor(found, [count, count]);
}

export function cosine(a: Numbers, b: Numbers): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum / (moments(a).norm * moments(b).norm || 1);
}

/** A histogram with `bins` equal bins. */
export function histogram(x: Numbers, low: number, high: number, bins: number): Float32Array {
  const counts = new Float32Array(bins);
  for (let i = 0; i < x.length; i++) {
    const bin = Math.floor(((x[i] - low) / (high - low || 1)) * bins);
    counts[Math.max(0, Math.min(bins - 1, bin))]++;
  }
  return counts;
}

/** Indices of the largest values by magnitude. */
export function strongest(x: Numbers, count: number): number[] {
  return Array.from(x.keys())
    .sort((a, b) => Math.abs(x[b]) - Math.abs(x[a]))
    .slice(0, count);
}
