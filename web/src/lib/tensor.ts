// Tensors as the server sends them: flat, row-major.

export type Numbers = Float32Array | Float64Array | Uint8Array | Int32Array;

/** The typed array of each dtype. */
export const KINDS: Record<string, new (buffer: ArrayBuffer) => Numbers> = {
  float32: Float32Array,
  float64: Float64Array,
  uint8: Uint8Array,
  int32: Int32Array,
};

export class Tensor {
  constructor(
    readonly data: Numbers,
    readonly shape: readonly number[],
  ) {}

  /** The value at an index. */
  at(...index: number[]): number {
    let flat = 0;
    for (let d = 0; d < this.shape.length; d++) flat = flat * this.shape[d] + index[d];
    return this.data[flat];
  }

  /** Select index `i` of the first dimension; shares memory. */
  of(i: number): Tensor {
    const rest = this.shape.slice(1);
    const size = rest.reduce((a, b) => a * b, 1);
    return new Tensor(this.data.subarray(i * size, (i + 1) * size), rest);
  }

  /** The mean over the first dimension, e.g. over heads. */
  mean(): Tensor {
    const rest = this.shape.slice(1);
    const size = rest.reduce((a, b) => a * b, 1);
    const sum = new Float32Array(size);
    for (let n = 0; n < this.shape[0]; n++) for (let i = 0; i < size; i++) sum[i] += this.data[n * size + i];
    for (let i = 0; i < size; i++) sum[i] /= this.shape[0];
    return new Tensor(sum, rest);
  }

  /** Slice like the server: `i`, `a:b`, `a:b:step` or `:` per dimension; missing ones are complete. */
  slice(text: string): Tensor {
    const items = text.split(',').map((item) => item.trim());
    const ranges = this.shape.map((size, d) => range(items[d] ?? ':', size));
    const shape = ranges.filter((r) => !r.single).map((r) => r.at.length);
    const data = new (this.data.constructor as new (n: number) => Numbers)(shape.reduce((a, b) => a * b, 1));
    let n = 0;
    const walk = (d: number, flat: number): void => {
      if (d === ranges.length) {
        data[n++] = this.data[flat];
        return;
      }
      for (const i of ranges[d].at) walk(d + 1, flat * this.shape[d] + i);
    };
    walk(0, 0);
    return new Tensor(data, shape);
  }

  /** Max-pool the last two dimensions to at most `most` each, like the server. */
  pooled(most: number): Tensor {
    const [height, width] = this.shape.slice(-2);
    const [down, across] = [Math.ceil(height / most), Math.ceil(width / most)]; // of a patch
    const [high, wide] = [Math.ceil(height / down), Math.ceil(width / across)];
    const before = this.shape.slice(0, -2);
    const count = before.reduce((a, b) => a * b, 1);
    const data = new (this.data.constructor as new (n: number) => Numbers)(count * high * wide);
    data.fill(-Infinity);
    for (let n = 0; n < count; n++) {
      for (let r = 0; r < height; r++) {
        for (let c = 0; c < width; c++) {
          const at = (n * high + Math.floor(r / down)) * wide + Math.floor(c / across);
          data[at] = Math.max(data[at], this.data[(n * height + r) * width + c]);
        }
      }
    }
    return new Tensor(data, [...before, high, wide]);
  }
}

function range(item: string, size: number): { single: boolean; at: number[] } {
  if (!item.includes(':')) return { single: true, at: [Number(item)] };
  const [from, to, step] = item.split(':');
  const at: number[] = [];
  for (let i = from ? Number(from) : 0; i < Math.min(to ? Number(to) : size, size); i += step ? Number(step) : 1)
    at.push(i);
  return { single: false, at };
}

/** The smallest and largest finite value; [0, 0] if there is none. */
export function extent(data: ArrayLike<number>): [number, number] {
  let low = Infinity;
  let high = -Infinity;
  for (let i = 0; i < data.length; i++) {
    const x = data[i];
    if (!Number.isFinite(x)) continue;
    if (x < low) low = x;
    if (x > high) high = x;
  }
  return low > high ? [0, 0] : [low, high];
}
