// What a Vision Transformer computes beside products of matrices, on numbers that lie in an array. No DOM here.

const REACH = 6; // beyond, GELU is 0 or x itself
const STEPS = 512; // of the table to 1
const HALF_STEP = 0.5 / STEPS;

/** @param {number} x of the bell curve: the density of the standard normal distribution */
const bell = (x) => Math.exp(-0.5 * x * x) / Math.sqrt(2 * Math.PI);

/** The area under the bell curve up to x, for x from -REACH to REACH: each step adds its own area (Simpson's rule). */
const AREAS = new Float64Array(2 * REACH * STEPS + 2);
for (let i = 1; i < AREAS.length; i++) {
  const x = i / STEPS - REACH;
  AREAS[i] = AREAS[i - 1] + (bell(x - 2 * HALF_STEP) + 4 * bell(x - HALF_STEP) + bell(x)) / (6 * STEPS);
}

/**
 * GELU of `count` numbers, in place: x times the share of the bell curve that lies below x.
 *
 * Between two entries of the table a parabola: off by less than 1e-9.
 *
 * Source: Hendrycks & Gimpel 2016, arXiv 1606.08415, eq. 1.
 *
 * @param {Float32Array} numbers
 * @param {number} at
 * @param {number} count
 */
export function gelu(numbers, at, count) {
  for (let i = at; i < at + count; i++) {
    const x = numbers[i];
    if (x <= -REACH) numbers[i] = 0;
    else if (x < REACH) {
      const place = (x + REACH) * STEPS;
      const step = Math.floor(place);
      const low = AREAS[step], high = AREAS[step + 1], part = place - step;
      // The curve's second derivative at x is -x bell(x); the bell is the table's own slope.
      const bend = 0.5 * part * (1 - part) * x * (high - low) / STEPS;
      numbers[i] = x * (low + part * (high - low) + bend);
    }
  }
}

/**
 * LayerNorm of one row into another: mean 0 and variance 1, then each channel's own scale and shift.
 *
 * Source: Ba et al. 2016, arXiv 1607.06450, eq. 4.
 *
 * @param {Float32Array} numbers
 * @param {number} from
 * @param {number} count
 * @param {number} scale where the scales lie
 * @param {number} shift
 * @param {number} eps
 * @param {number} into
 */
export function layerNorm(numbers, from, count, scale, shift, eps, into) {
  let sum = 0, squares = 0;
  for (let i = 0; i < count; i++) sum += numbers[from + i];
  const mean = sum / count;
  for (let i = 0; i < count; i++) squares += (numbers[from + i] - mean) ** 2;
  const factor = 1 / Math.sqrt(squares / count + eps);
  for (let i = 0; i < count; i++)
    numbers[into + i] = (numbers[from + i] - mean) * factor * numbers[scale + i] + numbers[shift + i];
}

/**
 * Softmax of one row times a factor, in place: powers of e, as shares of their sum.
 *
 * @param {Float32Array} numbers
 * @param {number} at
 * @param {number} count
 * @param {number} factor above 0
 */
export function softmax(numbers, at, count, factor) {
  let most = -Infinity, sum = 0;
  for (let i = at; i < at + count; i++) if (numbers[i] > most) most = numbers[i];
  for (let i = at; i < at + count; i++) sum += numbers[i] = Math.exp((numbers[i] - most) * factor);
  const share = 1 / sum;
  for (let i = at; i < at + count; i++) numbers[i] *= share;
}
