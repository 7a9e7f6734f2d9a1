// The image of a trace as a URL, which the page draws its overlays on.

import { paintPixels } from './overlay';
import { session } from '../lib/session.svelte';
import type { Tensor } from '../lib/tensor';
import type { TraceInfo } from '../lib/types';

export interface Picture {
  url: string;
  ratio: number; // width / height
  sharp: boolean; // so few pixels that they are shown as squares
}

const SHARP = 96; // pixels
const pictures = new WeakMap<Tensor, Picture>();

/** An image as a URL: a data: URL is returned as it is, base64 becomes one. */
export const imageUrl = (image: string): string =>
  image.startsWith('data:') ? image : `data:image/png;base64,${image}`;

/** The image of pixels (H, W, C). */
export function pictureOf(pixels: Tensor): Picture {
  let picture = pictures.get(pixels);
  if (!picture) {
    const [height, width] = pixels.shape;
    const canvas = document.createElement('canvas');
    paintPixels(canvas, pixels);
    picture = { url: canvas.toDataURL(), ratio: width / height, sharp: Math.max(height, width) <= SHARP };
    pictures.set(pixels, picture);
  }
  return picture;
}

const images = new Map<string, Promise<HTMLImageElement>>();

/** The decoded image, to paint on a canvas. */
export function loadPicture({ url }: Picture): Promise<HTMLImageElement> {
  let image = images.get(url);
  if (!image) {
    const element = new Image();
    element.src = url;
    image = element.decode().then(() => element);
    images.set(url, image);
    if (images.size > 8) images.delete(images.keys().next().value!);
  }
  return image;
}

/** The image as the model reads it: resized, and cropped by some models. */
export const inputPicture = async (trace: TraceInfo): Promise<Picture> =>
  pictureOf(await session.source.tensor(trace.id, 'input.pixels'));
