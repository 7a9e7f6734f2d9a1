// Diverging color tables in the colors of queries, keys, values etc.; negative values are gray.

import type { Theme } from '../lib/theme.svelte';

export type Hue = 'query' | 'key' | 'value' | 'ffn' | 'position' | 'output' | 'residual';
type Rgb = readonly [number, number, number];

const BRIGHT: Record<Theme, Record<Hue, Rgb>> = {
  light: {
    query: [24, 88, 176],
    key: [158, 82, 0],
    value: [16, 108, 68],
    ffn: [8, 98, 116],
    position: [125, 48, 134],
    output: [165, 28, 80],
    residual: [60, 60, 160],
  },
  dark: {
    query: [111, 179, 255],
    key: [240, 169, 90],
    value: [98, 211, 153],
    ffn: [92, 200, 216],
    position: [215, 155, 224],
    output: [255, 134, 172],
    residual: [160, 165, 255],
  },
};
const ENDS: Record<Theme, { none: Rgb; below: Rgb }> = {
  light: { none: [255, 255, 255], below: [70, 70, 82] },
  dark: { none: [23, 23, 31], below: [205, 205, 214] },
};

const made = new Map<string, Uint8ClampedArray>();

/** 256 colors as r, g, b, 255: the lowest value first, zero in the middle. */
export function hueTable(theme: Theme, hue: Hue): Uint8ClampedArray {
  const name = `${theme} ${hue}`;
  let colors = made.get(name);
  if (!colors) {
    colors = new Uint8ClampedArray(256 * 4);
    const { none, below } = ENDS[theme];
    const above = BRIGHT[theme][hue];
    for (let i = 0; i < 256; i++) {
      const at = i / 127.5 - 1;
      const end = at < 0 ? below : above;
      const share = Math.abs(at) ** 0.85; // keeps small values visible
      for (let c = 0; c < 3; c++) colors[4 * i + c] = none[c] + share * (end[c] - none[c]);
      colors[4 * i + 3] = 255;
    }
    made.set(name, colors);
  }
  return colors;
}
