// Decodes picture files with the browser.

const LARGEST = 25e6; // [px], the same limit as in the app

/**
 * Decode a picture: orientation applied, colour profile ignored, transparent parts white.
 *
 * @param {Blob} file
 */
export async function decodePicture(file) {
  const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none" });
  const { width, height } = bitmap;
  if (width * height > LARGEST) throw new Error("large");
  const context = /** @type {OffscreenCanvasRenderingContext2D} */ (
    new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true })
  );
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  return { pixels: context.getImageData(0, 0, width, height).data, width, height };
}
