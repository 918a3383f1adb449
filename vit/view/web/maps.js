// Arithmetic on maps, equivalent to `vit.explain.maps`. No DOM access.
//
// A map's N values are stored in `values` from index `at`; its patches begin at token `split`.

/** @import { Fusion } from "./types" */

/**
 * Fuse `count` maps of n values, which begin at `first` and lie `stride` apart, into the n values at `into`.
 *
 * @param {Fusion} kind
 * @param {Float32Array} values
 * @param {number} first
 * @param {number} stride
 * @param {number} count
 * @param {number} into
 * @param {number} n
 */
export function fuse(kind, values, first, stride, count, into, n) {
  for (let i = 0; i < n; i++) values[into + i] = values[first + i];
  for (let m = 1, at = first + stride; m < count; m++, at += stride) {
    if (kind === "mean") for (let i = 0; i < n; i++) values[into + i] += values[at + i];
    else if (kind === "max") {
      for (let i = 0; i < n; i++) if (values[at + i] > values[into + i]) values[into + i] = values[at + i];
    } else for (let i = 0; i < n; i++) if (values[at + i] < values[into + i]) values[into + i] = values[at + i];
  }
  if (kind === "mean") for (let i = 0; i < n; i++) values[into + i] /= count;
}

/**
 * Set a row's weakest patches to 0; prefix tokens are kept.
 *
 * @param {Float32Array} row (N)
 * @param {number} split
 * @param {number} weakest number of patches, at least 1
 * @param {Float32Array} order (P), scratch space for sorting
 */
export function discardWeakest(row, split, weakest, order) {
  order.set(row.subarray(split));
  const limit = order.sort()[weakest - 1];
  let equal = weakest; // patches equal to the limit to discard, so that exactly `weakest` are discarded
  for (let j = 0; j < order.length && order[j] < limit; j++) equal--;
  for (let j = split; j < row.length; j++) if (row[j] < limit || (row[j] === limit && equal-- > 0)) row[j] = 0;
}

/**
 * Normalise numbers to a sum of 1; unchanged if the sum is 0.
 *
 * @param {Float32Array} row
 */
export function normalise(row) {
  let sum = 0;
  for (let j = 0; j < row.length; j++) sum += row[j];
  if (sum > 0) for (let j = 0; j < row.length; j++) row[j] /= sum;
}

/**
 * Return the largest patch value, ignoring one token; at least 0.
 *
 * @param {Float32Array} values
 * @param {number} at
 * @param {number} split
 * @param {number} tokens
 * @param {number} except token to ignore, -1 for none
 */
export function strongest(values, at, split, tokens, except) {
  let top = 0;
  for (let token = split; token < tokens; token++)
    if (values[at + token] > top && token !== except) top = values[at + token];
  return top;
}

/**
 * Return the smallest and the largest patch value, ignoring one token.
 *
 * @param {Float32Array} values
 * @param {number} split
 * @param {number} tokens
 * @param {number} except
 * @returns {[number, number]}
 */
export function span(values, split, tokens, except) {
  let low = Infinity, top = -Infinity;
  for (let token = split; token < tokens; token++)
    if (token !== except) {
      low = Math.min(low, values[token]);
      top = Math.max(top, values[token]);
    }
  return [low, top];
}

/**
 * Write the patches with the largest values, ignoring one token, into out, best first; -1 fills what is left.
 *
 * @param {Float32Array} values
 * @param {number} split
 * @param {number} tokens
 * @param {number} except
 * @param {Int32Array} out
 */
export function largest(values, split, tokens, except, out) {
  const last = out.length;
  out.fill(-1);
  for (let token = split; token < tokens; token++) {
    if (token === except) continue;
    let rank = last;
    while (rank > 0 && (out[rank - 1] < 0 || values[token] > values[out[rank - 1]])) rank--;
    if (rank === last) continue;
    out.copyWithin(rank + 1, rank, last - 1);
    out[rank] = token;
  }
}

/**
 * Summarise a map.
 *
 * @param {Float32Array} values
 * @param {number} at
 * @param {number} split
 * @param {number} tokens
 * @returns sums over all and over prefix tokens; entropy [nats] of the normalised map; token of the strongest patch
 */
export function summary(values, at, split, tokens) {
  let sum = 0, prefix = 0, entropy = 0, best = split;
  for (let i = 0; i < tokens; i++) {
    const value = values[at + i];
    sum += value;
    if (value > 0) entropy -= value * Math.log(value);
    if (i < split) prefix += value;
    else if (value > values[at + best]) best = i;
  }
  return { sum, prefix, entropy: sum > 0 ? entropy / sum + Math.log(sum) : 0, best };
}

/**
 * Mark the patches to outline as 1 in out (P): the fewest that hold a share of the mass, or Otsu's upper class.
 *
 * @param {Float32Array} values
 * @param {number} at index of the first patch in values
 * @param {string} kind "mass" or "otsu"
 * @param {number} mass
 * @param {Uint8Array} out
 */
export function outlined(values, at, kind, mass, out) {
  const order = Uint32Array.from({ length: out.length }, (_, patch) => patch);
  order.sort((a, b) => values[at + b] - values[at + a]);
  const count = kind === "mass" ? countHoldingMass(values, at, order, mass) : otsuCount(values, at, order);
  out.fill(0);
  for (let i = 0; i < count; i++) out[order[i]] = 1;
  return out;
}

/**
 * Return how many of the strongest patches hold a share of the mass.
 *
 * @param {Float32Array} values
 * @param {number} at
 * @param {Uint32Array} order patches, strongest first
 * @param {number} mass
 */
function countHoldingMass(values, at, order, mass) {
  let sum = 0, count = 0;
  for (let i = 0; i < order.length; i++) sum += Math.max(0, values[at + i]);
  for (let held = 0; count < order.length; count++) {
    const value = values[at + order[count]];
    if (!(held < mass * sum * (1 - 1e-6)) || !(value > 0)) break; // tolerance for float32 maps
    held += value;
  }
  return count;
}

/**
 * Return the size of the upper class of the split with the largest between-class variance; 0 if all values are equal.
 *
 * Source: Otsu 1979, doi 10.1109/TSMC.1979.4310076.
 *
 * @param {Float32Array} values
 * @param {number} at
 * @param {Uint32Array} order patches, strongest first
 */
function otsuCount(values, at, order) {
  const count = order.length;
  let sum = 0, held = 0, threshold = 0, best = 0; // best: largest between-class variance so far
  for (let i = 0; i < count; i++) sum += values[at + i];
  for (let n = 1; n < count; n++) {
    const value = values[at + order[n - 1]];
    held += value;
    if (!(values[at + order[n]] < value)) continue; // equal values stay in one class
    const apart = n * (count - n) * (held / n - (sum - held) / (count - n)) ** 2;
    if (apart > best) [best, threshold] = [apart, n];
  }
  return threshold;
}

/**
 * Return the border around marked patches as an SVG path, with one unit per patch.
 *
 * @param {Uint8Array} marked
 * @param {number} rows
 * @param {number} cols
 */
export function border(marked, rows, cols) {
  /** @type {(row: number, col: number) => boolean} */
  const at = (row, col) => row >= 0 && row < rows && col >= 0 && col < cols && marked[row * cols + col] === 1;
  let path = "";
  for (let row = 0; row <= rows; row++)
    for (let col = 0; col <= cols; col++) {
      if (at(row, col) !== at(row - 1, col)) path += `M${col} ${row}h1`;
      if (at(row, col) !== at(row, col - 1)) path += `M${col} ${row}v1`;
    }
  return path;
}
