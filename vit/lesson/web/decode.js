// Decodes picture files with the browser.

const LARGEST = 25e6; // [px], the same limit as in the app

/**
 * Decode a picture file. Runs on the page, because Safari reads no Blob in the worker of a page from disk.
 *
 * @param {Blob} file
 */
export async function decodePicture(file) {
  const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none" });
  if (bitmap.width * bitmap.height > LARGEST) throw new Error("large");
  return { bitmap, bytes: new Uint8Array(await file.arrayBuffer()), type: file.type };
}

/**
 * Read pixels in the worker: orientation applied, colour profile ignored, transparent parts white.
 *
 * @param {ImageBitmap} bitmap
 */
export function readPixels(bitmap) {
  const { width, height } = bitmap;
  const context = /** @type {OffscreenCanvasRenderingContext2D} */ (
    new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true })
  );
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  return { pixels: context.getImageData(0, 0, width, height).data, width, height };
}
