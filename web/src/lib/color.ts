// Color scales for numbers: sequential (weights) and diverging around zero (values), as tables of 256 colors.

import { extent, type Numbers, type Tensor } from './tensor';
import type { Theme } from './theme.svelte';

/** Scales in the colors of queries, keys, values etc.; negative values are gray. */
export type Hue = 'query' | 'key' | 'value' | 'ffn' | 'position' | 'output' | 'residual';
/** `root` is sequential in the square root of the value; the others but `sequential` diverge around zero. */
export type Scale = 'sequential' | 'root' | 'signed' | Hue;
type Rgb = readonly [number, number, number];

const HUES: Record<Theme, Record<Hue | 'zero' | 'negative', Rgb>> = {
  light: {
    query: [24, 88, 176],
    key: [158, 82, 0],
    value: [16, 108, 68],
    ffn: [8, 98, 116],
    position: [125, 48, 134],
    output: [165, 28, 80],
    residual: [60, 60, 160],
    zero: [255, 255, 255],
    negative: [70, 70, 82],
  },
  dark: {
    query: [111, 179, 255],
    key: [240, 169, 90],
    value: [98, 211, 153],
    ffn: [92, 200, 216],
    position: [215, 155, 224],
    output: [255, 134, 172],
    residual: [160, 165, 255],
    zero: [23, 23, 31],
    negative: [205, 205, 214],
  },
};

// Chosen so that lightness falls (light theme) or rises (dark theme) evenly.
const STOPS: Record<Theme, Record<'sequential' | 'signed', readonly Rgb[]>> = {
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

export const diverges = (scale: Scale): boolean => scale !== 'sequential' && scale !== 'root';

const mix = (a: Rgb, b: Rgb, share: number): number[] => a.map((x, c) => x + share * (b[c] - x));

/** The color at a place of a scale, from 0 to 1. */
function colorAt(theme: Theme, scale: Scale, at: number): number[] {
  if (scale === 'root') scale = 'sequential';
  if (scale === 'sequential' || scale === 'signed') {
    const stops = STOPS[theme][scale];
    const n = Math.min(Math.floor(at * (stops.length - 1)), stops.length - 2);
    return mix(stops[n], stops[n + 1], at * (stops.length - 1) - n);
  }
  const { zero, negative, [scale]: positive } = HUES[theme];
  return mix(zero, at < 0.5 ? negative : positive, Math.abs(2 * at - 1) ** 0.85); // keeps small values visible
}

/** 256 colors as r, g, b, 255; of a diverging scale with zero in the middle. */
export function colorTable(theme: Theme, scale: Scale): Uint8ClampedArray {
  const name = `${theme} ${scale}`;
  let entries = tables.get(name);
  if (!entries) {
    entries = new Uint8ClampedArray(256 * 4);
    for (let i = 0; i < 256; i++) entries.set([...colorAt(theme, scale, i / 255), 255], 4 * i);
    tables.set(name, entries);
  }
  return entries;
}

/** The index of a value in a color table, 0 to 255; -1 for masked values. Zero is the middle of a diverging scale. */
export function colorIndex(value: number, scale: Scale, low: number, high: number): number {
  if (!Number.isFinite(value)) return -1; // masked
  if (diverges(scale)) {
    const limit = Math.max(Math.abs(low), Math.abs(high)) || 1;
    return Math.round(127.5 + (127.5 * Math.max(-limit, Math.min(limit, value))) / limit);
  }
  const share = (Math.max(low, Math.min(high, value)) - low) / (high - low || 1);
  return Math.round(255 * (scale === 'root' ? Math.sqrt(share) : share));
}

const OUTLIER = 3; // times the quantile
const QUANTILE = 0.995;
const SAMPLE = 20_000; // values to sort

/** The range of a color scale: that of the values, without a few outliers that would leave all others pale. */
export function colorRange(data: Numbers, scale: Scale): [number, number] {
  const [low, high] = extent(data);
  if (!diverges(scale) || data.length < 1000) return [low, high];
  const every = Math.ceil(data.length / SAMPLE);
  const sizes = data
    .filter((x, n) => n % every === 0 && Number.isFinite(x))
    .map(Math.abs)
    .sort();
  const limit = sizes[Math.floor(QUANTILE * sizes.length)];
  if (!(limit > 0) || Math.max(-low, high) < OUTLIER * limit) return [low, high];
  return [Math.max(low, -limit), Math.min(high, limit)];
}

const pixels = (bytes: Uint8ClampedArray): Uint32Array =>
  new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
const MASKED: Record<Theme, number[]> = { light: [226, 226, 232, 255], dark: [38, 38, 46, 255] };

/** Paint a matrix on a canvas, one pixel per cell; bytes are thumbnails, from 0 to 255. */
export function paintCells(
  canvas: HTMLCanvasElement,
  { data, shape }: Tensor,
  theme: Theme,
  scale: Scale = data instanceof Uint8Array ? 'sequential' : 'signed',
  [low, high]: readonly [number, number] = data instanceof Uint8Array ? [0, 255] : extent(data),
): void {
  [canvas.height, canvas.width] = shape;
  const context = canvas.getContext('2d')!;
  const image = context.createImageData(canvas.width, canvas.height);
  const cells = pixels(image.data);
  const colors = pixels(colorTable(theme, scale));
  const [masked] = pixels(Uint8ClampedArray.from(MASKED[theme]));
  for (let i = 0; i < cells.length; i++) cells[i] = colors[colorIndex(data[i], scale, low, high)] ?? masked;
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
