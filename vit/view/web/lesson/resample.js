// Pictures made smaller or larger as Pillow does it, to the last bit. No DOM here.
//
// A browser's own scaling differs between browsers and from Pillow by several shades, and a model notices.
// Source: Pillow, `src/libImaging/Resample.c`.

const BITS = 22; // behind the point of a weight, as a whole number
const ONE = 2 ** BITS;

/** @type {(x: number) => number} */
const sinc = (x) => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));

/** Pillow's filters: how much a pixel counts at a distance, and up to which distance. */
const FILTERS = {
  bilinear: { reach: 1, weight: (/** @type {number} */ x) => Math.max(0, 1 - Math.abs(x)) },
  bicubic: {
    reach: 2,
    weight: (/** @type {number} */ x) => {
      const d = Math.abs(x), a = -0.5;
      if (d < 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
      return d < 2 ? (((d - 5) * d + 8) * d - 4) * a : 0;
    },
  },
  lanczos: { reach: 3, weight: (/** @type {number} */ x) => (x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0) },
};

/** @typedef {keyof typeof FILTERS} Filter */

/**
 * For some of the pixels along one side: which ones they are made of, and the weight of each as a whole number.
 *
 * @param {number} length of the picture's side
 * @param {number} resized of the whole side afterwards
 * @param {number} first of the pixels that are wanted
 * @param {number} count
 * @param {Filter} filter
 */
function contributions(length, resized, first, count, filter) {
  const { reach, weight } = FILTERS[filter];
  const scale = length / resized, wide = Math.max(scale, 1); // a smaller picture takes in more: that is antialiasing
  return Array.from({ length: count }, (_, index) => {
    const center = (first + index + 0.5) * scale;
    const from = Math.max(0, Math.trunc(center - reach * wide + 0.5));
    const to = Math.min(length, Math.trunc(center + reach * wide + 0.5));
    const weights = Array.from({ length: to - from }, (__, i) => weight((from + i - center + 0.5) / wide));
    const sum = weights.reduce((total, one) => total + one, 0);
    return { from, weights: Int32Array.from(weights, (one) => Math.trunc((one / sum) * ONE + (one < 0 ? -0.5 : 0.5))) };
  });
}

/** @param {number} sum of bytes times weights */
const toByte = (sum) => Math.min(Math.max((sum + ONE / 2) >> BITS, 0), 255);

/**
 * A part of a resized picture: first along the rows, then along the columns.
 *
 * @param {Uint8Array | Uint8ClampedArray} pixels of the picture, a byte for each channel
 * @param {number} channels of them
 * @param {{ width: number, height: number }} picture
 * @param {{ width: number, height: number }} resized the whole picture afterwards
 * @param {{ left: number, top: number, width: number, height: number }} part of it that is wanted
 * @param {Filter} filter
 * @returns {Uint8Array} (height, width, 3) of the part, or (height, width, 1) of one channel
 */
export function resample(pixels, channels, picture, resized, part, filter) {
  const kept = Math.min(channels, 3);
  const rows = contributions(picture.height, resized.height, part.top, part.height, filter);
  const top = Math.min(...rows.map(({ from }) => from));
  const bottom = Math.max(...rows.map(({ from, weights }) => from + weights.length));
  const across = new Uint8Array((bottom - top) * part.width * kept);
  contributions(picture.width, resized.width, part.left, part.width, filter).forEach(({ from, weights }, x) => {
    const same = picture.width === resized.width; // Pillow leaves a side as it is that keeps its length
    for (let y = top; y < bottom; y++)
      for (let channel = 0, at = (y * picture.width + from) * channels; channel < kept; channel++, at++) {
        let sum = 0;
        for (let i = 0, pixel = at; i < weights.length; i++, pixel += channels) sum += pixels[pixel] * weights[i];
        across[((y - top) * part.width + x) * kept + channel] = same ? pixels[(y * picture.width + part.left + x) * channels + channel] : toByte(sum);
      }
  });
  const line = part.width * kept;
  const out = new Uint8Array(part.height * line);
  rows.forEach(({ from, weights }, y) => {
    const same = picture.height === resized.height;
    for (let x = 0; x < line; x++) {
      let sum = 0;
      for (let i = 0, at = (from - top) * line + x; i < weights.length; i++, at += line) sum += across[at] * weights[i];
      out[y * line + x] = same ? across[(part.top + y - top) * line + x] : toByte(sum);
    }
  });
  return out;
}
