// Scores a map's faithfulness from masks and their effect on a class, as `vit.explain.faithfulness_correlation` does. No DOM access.

import { openPayload } from "./bytes.js";

/** @import { Verdict } from "./types" */

export const SIGNIFICANCE = 0.05; // largest p-value that counts as better than chance

/** Masks that each hide 30% of the patches, and how far each lowers the class's log-probability. */
export class Masks {
  /** @param {Uint8Array} bytes written by `vit.view.payload.pack_masks` */
  constructor(bytes) {
    const { header, section } = openPayload(bytes);
    const bits = section("masks", Uint8Array);
    const drops = section("drops", Float32Array);
    this.rows = header.grid[0];
    this.cols = header.grid[1];
    this.target = header.target ?? "";
    this.ceiling = header.ceiling ?? 0; // score of the removal map
    this.decidable = header.decidable ?? false; // the masks change the class enough to compare maps
    this.complete = header.complete ?? true; // no more masks will be measured
    this.count = drops.length; // M
    this.patches = this.rows * this.cols;
    this.members = maskMembers(bits, this.count, this.patches); // (M, K), patches that each mask hides
    this.each = this.members.length / this.count; // K
    this.drops = centred(drops);
    this.sums = new Float64Array(this.count);
    this.copy = new Float64Array(this.patches);
    /** @type {Map<number, Verdict>} */
    this.verdicts = new Map(); // by the map's correlation, which serves as its key
  }

  /**
   * Return the correlation between a map's sums over the masks and their drops, -1 to 1; 0 for a constant map.
   *
   * @param {ArrayLike<number>} values
   * @param {number} at index of the first patch in values
   */
  correlation(values, at) {
    const { members, sums, drops, count, each, patches } = this;
    let mean = 0;
    for (let m = 0, i = 0; m < count; m++) {
      let sum = 0;
      for (const end = i + each; i < end; i++) sum += values[at + members[i]];
      sums[m] = sum;
      mean += sum / count;
    }
    let product = 0, own = 0, all = 0, size = 0;
    for (let m = 0; m < count; m++) {
      const apart = sums[m] - mean;
      product += apart * drops[m];
      own += apart * apart;
      all += drops[m] * drops[m];
    }
    for (let patch = 0; patch < patches; patch++) size += values[at + patch] ** 2;
    const uniform = Math.sqrt(own) <= 1e-9 * Math.sqrt(size * patches); // with a tolerance for rounding
    return uniform || all === 0 ? 0 : product / Math.sqrt(own * all);
  }

  /**
   * Compare a map with shifted (wrapping around the edges) and mirrored copies of itself; yields after each copy.
   *
   * @param {ArrayLike<number>} values
   * @param {number} at index of the first patch in values
   * @returns {Generator<undefined, Verdict>}
   */
  *computeVerdict(values, at) {
    const { rows, cols, copy, count } = this;
    const map = Float64Array.from({ length: this.patches }, (_, patch) => values[at + patch]);
    const correlation = this.correlation(map, 0);
    const others = new Float64Array(2 * this.patches - 1);
    for (let number = 1; number <= others.length; number++) {
      const mirrored = number >= this.patches;
      const down = Math.floor((number % this.patches) / cols), right = number % cols;
      for (let row = 0, patch = 0; row < rows; row++)
        for (let col = 0; col < cols; col++, patch++) {
          const from = (col + right) % cols;
          copy[patch] = map[((row + down) % rows) * cols + (mirrored ? cols - 1 - from : from)];
        }
      others[number - 1] = this.correlation(copy, 0);
      yield;
    }
    let reached = 0;
    for (const other of others) if (other >= correlation - 1e-12) reached++;
    const error = (1 - correlation ** 2) / Math.sqrt(count - 1);
    return { correlation, reach: quantile(others, 1 - SIGNIFICANCE), p: (1 + reached) / (1 + others.length), error };
  }
}

/**
 * Return a verdict as text.
 *
 * @param {Verdict} verdict
 */
export function verdictWord({ correlation, reach, p, error }) {
  if (p <= SIGNIFICANCE) return "better than chance";
  return correlation + 2 * error > reach ? "cannot be decided yet" : "no better than chance";
}

/**
 * Return the patches of every mask, (M, K).
 *
 * @param {Uint8Array} bits (M, ceil(P / 8)), lowest bit first
 * @param {number} count M
 * @param {number} patches P
 */
function maskMembers(bits, count, patches) {
  const width = bits.length / count;
  const members = [];
  for (let m = 0; m < count; m++)
    for (let patch = 0; patch < patches; patch++)
      if ((bits[m * width + (patch >> 3)] >> (patch & 7)) & 1) members.push(patch);
  return Uint16Array.from(members);
}

/** @param {Float32Array} numbers */
function centred(numbers) {
  const mean = numbers.reduce((sum, number) => sum + number / numbers.length, 0);
  return Float64Array.from(numbers, (number) => number - mean);
}

/**
 * Return a quantile, linearly interpolated; 0 for an empty list.
 *
 * @param {Float64Array} numbers
 * @param {number} share
 */
function quantile(numbers, share) {
  if (!numbers.length) return 0;
  const sorted = numbers.slice().sort();
  const place = share * (sorted.length - 1);
  const before = Math.floor(place), after = Math.min(before + 1, sorted.length - 1);
  return sorted[before] + (place - before) * (sorted[after] - sorted[before]);
}
