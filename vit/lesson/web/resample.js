// Resizes pictures bit-identically to Pillow. No DOM access.
//
// Browsers' own scaling differs from Pillow's by several levels, which changes the model's output.
// Source: Pillow, `src/libImaging/Resample.c`.

const BITS = 22; // fractional bits of a fixed-point weight
const ONE = 2 ** BITS;

/** @type {(x: number) => number} */
const sinc = (x) => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));

/** Pillow's filters: weight of a pixel by its distance, and the support radius. */
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
 * Return, for some output pixels along one axis, the first input pixel and the fixed-point weights.
 *
 * @param {number} length input pixels
 * @param {number} resized output pixels of the whole axis
 * @param {number} first first output pixel to compute
 * @param {number} count number of output pixels to compute
 * @param {Filter} filter
 */
function contributions(length, resized, first, count, filter) {
  const { reach, weight } = FILTERS[filter];
  const scale = length / resized, wide = Math.max(scale, 1); // downscaling widens the filter (antialiasing)
  return Array.from({ length: count }, (_, index) => {
    const center = (first + index + 0.5) * scale;
    const from = Math.max(0, Math.trunc(center - reach * wide + 0.5));
    const to = Math.min(length, Math.trunc(center + reach * wide + 0.5));
    const weights = Array.from({ length: to - from }, (__, i) => weight((from + i - center + 0.5) / wide));
    const sum = weights.reduce((total, one) => total + one, 0);
    return { from, weights: Int32Array.from(weights, (one) => Math.trunc((one / sum) * ONE + (one < 0 ? -0.5 : 0.5))) };
  });
}

/**
 * Convert a fixed-point sum to a byte, rounded and clamped.
 *
 * @param {number} sum sum of bytes times weights
 */
function toByte(sum) {
  const byte = (sum + (ONE >> 1)) >> BITS;
  return byte < 0 ? 0 : byte > 255 ? 255 : byte;
}

/**
 * Compute a part of a resized picture: horizontal pass, rounded to bytes, then vertical pass.
 *
 * @param {Uint8Array | Uint8ClampedArray} pixels (height, width, 4): red, green, blue, unused
 * @param {{ width: number, height: number }} picture
 * @param {{ width: number, height: number }} resized size of the whole picture afterwards
 * @param {{ left: number, top: number, width: number, height: number }} part part of the resized picture to compute
 * @param {Filter} filter
 * @returns {Uint8Array} (height, width, 3) of the part
 */
export function resample(pixels, picture, resized, part, filter) {
  const columns = contributions(picture.width, resized.width, part.left, part.width, filter);
  const rows = contributions(picture.height, resized.height, part.top, part.height, filter);
  const top = Math.min(...rows.map(({ from }) => from));
  const bottom = Math.max(...rows.map(({ from, weights }) => from + weights.length));
  const across = new Uint8Array((bottom - top) * part.width * 3);
  for (let y = top, to = 0; y < bottom; y++)
    for (const { from, weights } of columns) {
      let red = 0, green = 0, blue = 0;
      for (let i = 0, at = (y * picture.width + from) * 4; i < weights.length; i++, at += 4) {
        red = (red + Math.imul(pixels[at], weights[i])) | 0;
        green = (green + Math.imul(pixels[at + 1], weights[i])) | 0;
        blue = (blue + Math.imul(pixels[at + 2], weights[i])) | 0;
      }
      across[to++] = toByte(red);
      across[to++] = toByte(green);
      across[to++] = toByte(blue);
    }
  const line = part.width * 3;
  const out = new Uint8Array(part.height * line);
  rows.forEach(({ from, weights }, y) => {
    for (let x = 0; x < line; x++) {
      let sum = 0;
      for (let i = 0, at = (from - top) * line + x; i < weights.length; i++, at += line) sum = (sum + Math.imul(across[at], weights[i])) | 0;
      out[y * line + x] = toByte(sum);
    }
  });
  return out;
}
