// Saves a figure as SVG, or as PNG rendered from the SVG.

import { toSvg } from './svgExport';
import type { Tensor } from './tensor';

function download(blob: Blob, name: string): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export async function saveSvg(view: HTMLElement, name: string): Promise<void> {
  const { text } = await toSvg(view);
  download(new Blob([text], { type: 'image/svg+xml' }), `${name}.svg`);
}

const DTYPES: Record<string, string> = {
  Float32Array: '<f4',
  Float64Array: '<f8',
  Uint8Array: '|u1',
  Int32Array: '<i4',
};

/** Save a tensor as a NumPy file. */
export function saveNpy({ data, shape }: Tensor, name: string): void {
  const size = shape.length === 1 ? `${shape[0]},` : shape.join(', ');
  const header = `{'descr': '${DTYPES[data.constructor.name]}', 'fortran_order': False, 'shape': (${size}), }`;
  const length = Math.ceil((header.length + 11) / 64) * 64 - 10; // the data starts at a multiple of 64
  const magic = Uint8Array.of(0x93, ...new TextEncoder().encode('NUMPY'), 1, 0, length & 255, length >> 8);
  download(new Blob([magic, `${header.padEnd(length - 1)}\n`, data.slice()]), `${name}.npy`);
}

const MAX_PIXELS = 8192; // per side, supported by every browser

export async function savePng(view: HTMLElement, name: string): Promise<void> {
  const { text, width, height } = await toSvg(view);
  const scale = Math.min(2, MAX_PIXELS / Math.max(width, height));
  const image = new Image();
  const address = URL.createObjectURL(new Blob([text], { type: 'image/svg+xml' }));
  image.src = address;
  await image.decode();
  const canvas = document.createElement('canvas');
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext('2d')!;
  context.scale(scale, scale);
  context.imageSmoothingEnabled = false;
  context.drawImage(image, 0, 0, width, height);
  URL.revokeObjectURL(address);
  const blob = await new Promise<Blob | null>((done) => canvas.toBlob(done, 'image/png'));
  if (blob) download(blob, `${name}.png`);
}
