// Reads an image file in the browser, scaled down to at most 1024 pixels.

const MOST = 1024;

/** The image as a data: URL; null if the browser cannot open it. */
export async function readImage(file: Blob): Promise<string | null> {
  let picture: ImageBitmap;
  try {
    picture = await createImageBitmap(file);
  } catch {
    return null;
  }
  const fit = Math.min(1, MOST / Math.max(picture.width, picture.height));
  const canvas = document.createElement('canvas');
  canvas.width = Math.max(1, Math.round(picture.width * fit));
  canvas.height = Math.max(1, Math.round(picture.height * fit));
  const context = canvas.getContext('2d')!;
  context.fillStyle = '#ffffff'; // behind transparent pixels
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = 'high';
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  const small = canvas.width * canvas.height <= 256 * 256;
  return small ? canvas.toDataURL('image/png') : canvas.toDataURL('image/jpeg', 0.92);
}
