// Paints images: lit by the attention to their patches, or with a mask over them.

import type { Tensor } from '../lib/tensor';

const DARK = 0.36; // brightness without attention
const GAMMA = 0.7; // so that small weights are visible
const FLOOR = 14;
const LAMP = [255, 236, 170] as const;
const GLOW = 0.3;
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

/** Part of a grid: its first row and column, and how many of each. */
export type Cells = [row: number, column: number, rows: number, columns: number];

/**
 * Paint an image lit by attention: a patch is as bright as its weight, at most `full`; what is not attended to is
 * dark gray. Only the cells of `crop` are painted, on a canvas whose longer side has `side` pixels.
 */
export function paintLight(
  canvas: HTMLCanvasElement,
  picture: CanvasImageSource & { width: number; height: number },
  weights: ArrayLike<number>,
  grid: [number, number],
  { full, crop, side, smooth }: { full: number; crop: Cells; side: number; smooth: boolean },
): void {
  const [row, column, rows, columns] = crop;
  const [high, wide] = [(picture.height * rows) / grid[0], (picture.width * columns) / grid[1]];
  const fit = side / Math.max(high, wide);
  const [height, width] = [Math.max(1, Math.round(high * fit)), Math.max(1, Math.round(wide * fit))];
  Object.assign(canvas, { width, height });
  const context = canvas.getContext('2d', { willReadFrequently: true })!;
  context.imageSmoothingEnabled = smooth;
  const [x, y] = [(picture.width * column) / grid[1], (picture.height * row) / grid[0]];
  context.drawImage(picture, x, y, wide, high, 0, 0, width, height);
  const image = context.getImageData(0, 0, width, height);
  const { data } = image;
  for (let py = 0, n = 0; py < height; py++) {
    const first = (row + Math.floor((py * rows) / height)) * grid[1] + column;
    for (let px = 0; px < width; px++, n += 4) {
      const share = weights[first + Math.floor((px * columns) / width)] / (full || 1);
      const light = Math.max(0, Math.min(1, share)) ** GAMMA;
      const gray = DARK * (0.3 * data[n] + 0.6 * data[n + 1] + 0.1 * data[n + 2]) + FLOOR;
      for (let c = 0; c < 3; c++) {
        const lit = data[n + c] + (LAMP[c] - data[n + c]) * GLOW; // so that black patches glow, too
        data[n + c] = gray + (lit - gray) * light;
      }
    }
  }
  context.putImageData(image, 0, 0);
}

const EDGE = 2; // pixels
const SHADE = [16, 16, 28, 105] as const;

/**
 * Paint the mask of positive logits (rows, columns), resized bilinearly as the model's masks are: a tint with an edge,
 * and a shade over everything else, so that it can be told from objects of any color.
 */
function paintMask(
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

interface MaskLayer {
  logits: Tensor;
  size: [number, number];
  color: string;
  side: number;
}
/** Paint a mask on a canvas, and again when it changes. */
export function maskLayer(canvas: HTMLCanvasElement, layer: MaskLayer): { update: (next: MaskLayer) => void } {
  const draw = ({ logits, size, color, side }: MaskLayer): void => paintMask(canvas, logits, size, color, side);
  draw(layer);
  return { update: draw };
}
