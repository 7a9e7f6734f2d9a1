// Draws an image with an overlay that tints each patch by its attention.

import type { Tensor } from '../lib/tensor';

const TINT = [118, 92, 255] as const; // not of the theme: it must stand out from the picture's own greys and colors

const GREY = 150;

export interface Veil {
  weights: ArrayLike<number>; // one per patch, by rows; a negative one hides its patch behind grey
  full: number; // the weight that is tinted fully
  grid: [number, number]; // rows, columns
}

/** Paint pixels (H, W, C) onto a canvas at most `side` wide or high; the canvas is stretched by its style. */
export function paint(canvas: HTMLCanvasElement, pixels: Tensor, veil: Veil | null, side = 512): void {
  const [high, wide, channels] = pixels.shape;
  const fit = Math.min(1, side / Math.max(high, wide));
  const height = Math.max(1, Math.round(high * fit));
  const width = Math.max(1, Math.round(wide * fit));
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext('2d')!;
  const image = context.createImageData(width, height);
  for (let y = 0, n = 0; y < height; y++) {
    const from = Math.floor((y * high) / height) * wide;
    const row = veil ? Math.min(veil.grid[0] - 1, Math.floor((y * veil.grid[0]) / height)) * veil.grid[1] : 0;
    for (let x = 0; x < width; x++, n += 4) {
      const at = (from + Math.floor((x * wide) / width)) * channels;
      const share = veil ? veil.weights[row + Math.min(veil.grid[1] - 1, Math.floor((x * veil.grid[1]) / width))] : 0;
      const tint = veil ? 0.88 * Math.max(0, Math.min(1, share / (veil.full || 1))) : 0;
      const grey = share < 0 ? 0.78 : 0;
      for (let c = 0; c < 3; c++) {
        const own = pixels.data[at + (channels >= 3 ? c : 0)];
        image.data[n + c] = (own * (1 - tint) + TINT[c] * tint) * (1 - grey) + GREY * grey;
      }
      image.data[n + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
}
