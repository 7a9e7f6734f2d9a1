// Paints images, and transparent layers over them: attention to patches, and masks.

import type { Tensor } from '../lib/tensor';

const TINT = [118, 92, 255] as const; // not of the theme: it must stand out from the colors of images
const GREY = [150, 150, 150] as const;
export const MASKS = ['#ff3d83', '#00a6a6', '#e08600'] as const;

/** Paint pixels (H, W, C), at most `side` of them in each direction. */
export function paintPixels(canvas: HTMLCanvasElement, pixels: Tensor, side = 640): void {
  const [high, wide, channels] = pixels.shape;
  const fit = Math.min(1, side / Math.max(high, wide));
  const height = Math.max(1, Math.round(high * fit));
  const width = Math.max(1, Math.round(wide * fit));
  Object.assign(canvas, { width, height });
  const context = canvas.getContext('2d')!;
  const image = context.createImageData(width, height);
  for (let y = 0, n = 0; y < height; y++) {
    const from = Math.floor((y * high) / height) * wide;
    for (let x = 0; x < width; x++, n += 4) {
      const at = (from + Math.floor((x * wide) / width)) * channels;
      for (let c = 0; c < 3; c++) image.data[n + c] = pixels.data[at + (channels >= 3 ? c : 0)];
      image.data[n + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
}

/** Paint weights, one pixel per patch of a grid; `full` has the strongest tint, negative weights are grey. */
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
    if (weights[n] < 0) image.data.set([...GREY, 200], n * 4);
    else image.data.set([...TINT, 225 * Math.min(1, weights[n] / (full || 1))], n * 4);
  context.putImageData(image, 0, 0);
}

const EDGE = 2; // pixels
const SHADE = [16, 16, 28, 105] as const;

/**
 * Paint the mask of positive logits (rows, columns), resized bilinearly as the model's masks are: a tint with an edge,
 * and a shade over everything else, so that it can be told from objects of any color.
 */
export function paintMask(
  canvas: HTMLCanvasElement,
  logits: Tensor,
  size: [number, number],
  color: string,
  side: number,
): void {
  const [rows, columns] = logits.shape;
  const fit = side / Math.max(...size);
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
  const outside = (x: number, y: number): boolean =>
    x >= 0 && y >= 0 && x < width && y < height && !inside[y * width + x];
  for (let y = 0, n = 0; y < height; y++)
    for (let x = 0; x < width; x++, n++) {
      const near = (d: number): boolean =>
        outside(x - d, y) || outside(x + d, y) || outside(x, y - d) || outside(x, y + d);
      if (!inside[n]) image.data.set(SHADE, n * 4);
      else if (near(1)) image.data.set([255, 255, 255, 255], n * 4);
      else image.data.set([...rgb, near(1 + EDGE) ? 255 : 90], n * 4);
    }
  context.putImageData(image, 0, 0);
}
