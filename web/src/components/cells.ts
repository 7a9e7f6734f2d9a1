// Paints a matrix on a canvas of the page, again in the other theme.

import { paintCells, type Scale } from '../lib/color';
import type { Tensor } from '../lib/tensor';
import { appearance } from '../lib/theme.svelte';

/** One pixel per cell; thumbnails are bytes. */
export const cells =
  (values: Tensor, scale?: Scale, range?: readonly [number, number]) =>
  (canvas: HTMLCanvasElement): void => {
    paintCells(canvas, values, appearance.theme, scale, range);
  };
