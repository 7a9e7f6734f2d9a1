// Color scales for numbers: sequential (weights) and diverging around zero (values), as tables of 256 colors.

import type { Tensor } from './tensor';
import type { Theme } from './theme.svelte';

export type Scale = 'sequential' | 'signed';
type Rgb = readonly [number, number, number];

// Chosen so that lightness falls (light theme) or rises (dark theme) evenly.
const STOPS: Record<Theme, Record<Scale, readonly Rgb[]>> = {
  light: {
    sequential: [
      [255, 255, 255],
      [214, 219, 250],
      [150, 158, 236],
      [91, 91, 214],
      [49, 40, 140],
      [25, 16, 76],
    ],
    signed: [
      [140, 56, 0],
      [222, 120, 40],
      [248, 200, 150],
      [250, 250, 252],
      [165, 205, 245],
      [50, 125, 210],
      [10, 60, 130],
    ],
  },
  dark: {
    sequential: [
      [22, 22, 30],
      [45, 42, 92],
      [84, 80, 180],
      [132, 134, 238],
      [186, 194, 255],
      [240, 243, 255],
    ],
    signed: [
      [255, 196, 130],
      [228, 128, 48],
      [122, 62, 18],
      [26, 26, 34],
      [18, 66, 120],
      [58, 140, 226],
      [168, 214, 255],
    ],
  },
};

const tables = new Map<string, Uint8ClampedArray>();

/** 256 colors as r, g, b, 255. */
export function colorTable(theme: Theme, scale: Scale): Uint8ClampedArray {
  const name = `${theme} ${scale}`;
  let entries = tables.get(name);
  if (!entries) {
    const stops = STOPS[theme][scale];
    entries = new Uint8ClampedArray(256 * 4);
    for (let i = 0; i < 256; i++) {
      const at = (i / 255) * (stops.length - 1);
      const n = Math.min(Math.floor(at), stops.length - 2);
      for (let c = 0; c < 3; c++) entries[4 * i + c] = stops[n][c] + (at - n) * (stops[n + 1][c] - stops[n][c]);
      entries[4 * i + 3] = 255;
    }
    tables.set(name, entries);
  }
  return entries;
}

/** The index of a value in a color table, 0 to 255; -1 for masked values. Zero is the middle of a signed scale. */
export function colorIndex(value: number, scale: Scale, low: number, high: number): number {
  if (!Number.isFinite(value)) return -1; // masked
  if (scale === 'signed') {
    const limit = Math.max(Math.abs(low), Math.abs(high)) || 1;
    return Math.round(127.5 + (127.5 * Math.max(-limit, Math.min(limit, value))) / limit);
  }
  return Math.round((255 * (Math.max(low, Math.min(high, value)) - low)) / (high - low || 1));
}

const pixels = (bytes: Uint8ClampedArray): Uint32Array =>
  new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);

/** Paint values on a canvas of the same size, one per pixel; `hidden` is the color of masked values. */
export function paintCells(
  canvas: HTMLCanvasElement,
  values: ArrayLike<number>,
  colors: Uint8ClampedArray,
  scale: Scale,
  [low, high]: readonly [number, number],
  hidden: number[] = [0, 0, 0, 0],
): void {
  const context = canvas.getContext('2d')!;
  const image = context.createImageData(canvas.width, canvas.height);
  const cells = pixels(image.data);
  const colorTable = pixels(colors);
  const [none] = pixels(Uint8ClampedArray.from(hidden));
  for (let i = 0; i < cells.length; i++) {
    const n = colorIndex(values[i], scale, low, high);
    cells[i] = n < 0 ? none : colorTable[n];
  }
  context.putImageData(image, 0, 0);
}

/** Paint the thumbnail of a head, bytes from 0 to 255, on a canvas, which is resized. */
export function paintBytes(canvas: HTMLCanvasElement, { data, shape: [high, wide] }: Tensor, theme: Theme): void {
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  const context = canvas.getContext('2d')!;
  const image = context.createImageData(wide, high);
  const cells = pixels(image.data);
  const colors = pixels(colorTable(theme, 'sequential'));
  for (let i = 0; i < cells.length; i++) cells[i] = colors[data[i]];
  context.putImageData(image, 0, 0);
}

/** The color of one value, for text backgrounds and bars. */
export function colorOf(value: number, scale: Scale, low: number, high: number, theme: Theme): string {
  const n = colorIndex(value, scale, low, high);
  if (n < 0) return 'transparent';
  const t = colorTable(theme, scale);
  return `rgb(${t[4 * n]} ${t[4 * n + 1]} ${t[4 * n + 2]})`;
}

/** Black or white, whichever has more contrast on that color. */
export function textColor(value: number, scale: Scale, low: number, high: number, theme: Theme): string {
  const n = colorIndex(value, scale, low, high);
  if (n < 0) return 'inherit';
  const t = colorTable(theme, scale);
  const light = 0.2126 * linear(t[4 * n]) + 0.7152 * linear(t[4 * n + 1]) + 0.0722 * linear(t[4 * n + 2]);
  return (light + 0.05) ** 2 > 1.05 * 0.05 ? '#000000' : '#ffffff'; // equal contrast with black and white, 4.6 : 1
}

const linear = (byte: number): number => (byte <= 10 ? byte / 255 / 12.92 : ((byte / 255 + 0.055) / 1.055) ** 2.4);
