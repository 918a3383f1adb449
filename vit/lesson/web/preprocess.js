// Preprocesses a picture for the model, like `vit/images/preprocess.py`. No DOM access.

import { resample } from "./resample.js";

/** @import { Preprocess } from "./types" */

/**
 * Return the model's input and the part of the picture that it covers.
 *
 * @param {Preprocess} preprocess
 * @param {Uint8Array | Uint8ClampedArray} pixels (height, width, 4): red, green, blue, unused
 * @param {number} width
 * @param {number} height
 * @returns {{ input: Float32Array, box: number[] }} (channels, height, width), normalised; left, top, right, bottom
 */
export function prepare(preprocess, pixels, width, height) {
  const { size: [high, wide], mean, std, interpolation } = preprocess;
  const resized = sizeAfter(preprocess, width, height);
  const round = preprocess.rounding === "down" ? Math.floor : roundToEven;
  const left = round((resized.width - wide) / 2), top = round((resized.height - high) / 2);
  const part = { left, top, width: wide, height: high };
  const channels = mean.length;
  const bytes = resample(channels === 1 ? grey(pixels) : pixels, { width, height }, resized, part, interpolation);
  const input = new Float32Array(channels * high * wide);
  for (let channel = 0, i = 0; channel < channels; channel++)
    for (let pixel = channel; pixel < bytes.length; pixel += 3, i++)
      input[i] = (bytes[pixel] / 255 - mean[channel]) / std[channel];
  const x = width / resized.width, y = height / resized.height; // picture pixels per resized pixel
  return { input, box: [left * x, top * y, (left + wide) * x, (top + high) * y] };
}

/**
 * Return the size that a picture is resized to; the longer side is rounded down.
 *
 * @param {Preprocess} preprocess
 * @param {number} width
 * @param {number} height
 */
function sizeAfter({ resize, resize_to: to, size }, width, height) {
  const [high, wide] = resize === "squash" ? size : [height, width];
  const shorter = Math.min(high, wide);
  return { width: Math.floor((to * wide) / shorter), height: Math.floor((to * high) / shorter) };
}

/** Round half to even, as Python does. @param {number} value */
function roundToEven(value) {
  const below = Math.floor(value);
  return value - below === 0.5 ? below + (below & 1) : Math.round(value);
}

/**
 * Replace the red channel by luma, as Pillow's mode L does: ITU-R 601-2 in integers.
 *
 * @param {Uint8Array | Uint8ClampedArray} pixels
 */
function grey(pixels) {
  const shades = pixels.slice();
  for (let at = 0; at < shades.length; at += 4)
    shades[at] = (19595 * pixels[at] + 38470 * pixels[at + 1] + 7471 * pixels[at + 2] + 32768) >> 16;
  return shades;
}
