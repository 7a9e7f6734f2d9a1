// Masks and attention as transparent layers over an image.

import type { Tensor } from '../lib/tensor';

const TINT = [118, 92, 255] as const; // of attention, as on patches
export const MASKS = ['#ff3d83', '#00a6a6', '#e08600'] as const;

/** Paint the pixels with a positive logit (rows, columns), resized bilinearly as the model's masks are. */
export function paintMask(
  canvas: HTMLCanvasElement,
  logits: Tensor,
  size: [number, number],
  color: string,
  side = 640,
): void {
  const [rows, columns] = logits.shape;
  const fit = Math.min(1, side / Math.max(...size));
  const [height, width] = size.map((n) => Math.max(1, Math.round(n * fit)));
  Object.assign(canvas, { width, height });
  const context = canvas.getContext('2d')!;
  const image = context.createImageData(width, height);
  const rgb = [1, 3, 5].map((n) => parseInt(color.slice(n, n + 2), 16));
  const inside = new Uint8Array(width * height);
  for (let y = 0; y < height; y++) {
    const v = Math.max(0, Math.min(rows - 1, ((y + 0.5) * rows) / height - 0.5));
    const [top, down] = [Math.floor(v), Math.min(rows - 1, Math.floor(v) + 1)];
    for (let x = 0; x < width; x++) {
      const u = Math.max(0, Math.min(columns - 1, ((x + 0.5) * columns) / width - 0.5));
      const [left, right] = [Math.floor(u), Math.min(columns - 1, Math.floor(u) + 1)];
      const above =
        logits.data[top * columns + left] * (left + 1 - u) + logits.data[top * columns + right] * (u - left);
      const below =
        logits.data[down * columns + left] * (left + 1 - u) + logits.data[down * columns + right] * (u - left);
      if (above * (top + 1 - v) + below * (v - top) > 0) inside[y * width + x] = 1;
    }
  }
  for (let y = 0, n = 0; y < height; y++)
    for (let x = 0; x < width; x++, n++) {
      if (!inside[n]) continue;
      const edge = !(x && inside[n - 1] && inside[n + 1] && y && inside[n - width] && inside[n + width]);
      image.data.set([...rgb, edge ? 255 : 115], n * 4);
    }
  context.putImageData(image, 0, 0);
}

/** Paint weights, one per cell of a grid; `full` has the strongest color. */
export function paintWeights(
  canvas: HTMLCanvasElement,
  weights: ArrayLike<number>,
  grid: [number, number],
  full: number,
): void {
  [canvas.height, canvas.width] = grid;
  const context = canvas.getContext('2d')!;
  const image = context.createImageData(grid[1], grid[0]);
  for (let n = 0; n < grid[0] * grid[1]; n++)
    image.data.set([...TINT, 225 * Math.max(0, Math.min(1, weights[n] / (full || 1)))], n * 4);
  context.putImageData(image, 0, 0);
}
