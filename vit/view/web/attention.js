// Rows and columns of a payload's attention maps, for both payload kinds (maps; queries and keys). No DOM access.

import { decodeHalves } from "./bytes.js";
import { discardWeakest, normalise } from "./maps.js";

/** @import { Section } from "./bytes.js" */
/** @import { Payload } from "./payload.js" */
/** @import { Direction, Fusion, RolloutSettings } from "./types" */

const DECODED_BUDGET = 192 * 2 ** 20; // [bytes] of queries and keys cached as float32

/** Attention maps stored as uint8, with a scale per row. */
export class Maps {
  /**
   * @param {Payload} payload
   * @param {Section} section
   */
  constructor(payload, section) {
    this.payload = payload;
    this.maps = section("maps", Uint8Array);
    const prefix = section("prefix", Uint16Array);
    this.prefix = decodeHalves(prefix, 0, new Float32Array(prefix.length));
    this.units = section("scales", Float32Array).map((scale) => scale / 255);
    this.fusedKey = ""; // settings that `fused` was computed with
    /** @type {Float32Array | null} */
    this.fused = null; // (L, N, N), for rollout
    this.scratch = new Float32Array(payload.tokens);
    this.order = new Float32Array(payload.patches);
  }

  /**
   * Write one row or column of a head's map into out, see `Payload.fill`.
   *
   * @param {number} block
   * @param {number} head
   * @param {number} token
   * @param {boolean} to the token's column instead of its row
   * @param {Float32Array} out
   * @param {number} at
   */
  fill(block, head, token, to, out, at) {
    const { heads, tokens, split, patches } = this.payload;
    const { maps, prefix, units } = this;
    const first = (block * heads + head) * tokens; // row 0 of this map
    if (!to) {
      const row = first + token;
      for (let s = 0; s < split; s++) out[at + s] = prefix[row * split + s];
      const unit = units[row];
      const from = row * patches;
      const into = at + split;
      for (let p = 0; p < patches; p++) out[into + p] = maps[from + p] * unit;
    } else if (token < split) {
      for (let i = 0, from = first * split + token; i < tokens; i++, from += split) out[at + i] = prefix[from];
    } else {
      for (let i = 0, from = first * patches + token - split; i < tokens; i++, from += patches)
        out[at + i] = maps[from] * units[first + i];
    }
  }

  /**
   * Compute the rollout of one token into out (N), as a vector multiplied by the matrix of each block in turn.
   *
   * @param {number} token
   * @param {Direction} direction
   * @param {RolloutSettings} settings
   * @param {Float32Array} out
   */
  rollout(token, direction, settings, out) {
    const { blocks } = this.payload;
    const maps = this.fusedMaps(settings);
    out.fill(0)[token] = 1;
    for (let step = 0; step < blocks; step++)
      if (direction === "to") this.reach(maps, step, settings.residual, out);
      else this.compose(maps, blocks - 1 - step, settings.residual, out);
  }

  /**
   * Apply one block of rollout "from" a token: out becomes out times the block's matrix.
   *
   * @param {Float32Array} maps
   * @param {number} block
   * @param {number} residual
   * @param {Float32Array} out
   */
  compose(maps, block, residual, out) {
    const { tokens } = this.payload;
    const next = this.scratch;
    for (let j = 0; j < tokens; j++) next[j] = residual * out[j];
    for (let i = 0, at = block * tokens * tokens; i < tokens; i++, at += tokens) {
      const share = (1 - residual) * out[i];
      if (share > 0) for (let j = 0; j < tokens; j++) next[j] += share * maps[at + j];
    }
    out.set(next);
  }

  /**
   * Apply one block of rollout "to" a token: out becomes the block's matrix times out.
   *
   * @param {Float32Array} maps
   * @param {number} block
   * @param {number} residual
   * @param {Float32Array} out
   */
  reach(maps, block, residual, out) {
    const { tokens } = this.payload;
    const next = this.scratch;
    for (let i = 0, at = block * tokens * tokens; i < tokens; i++, at += tokens) {
      let sum = 0;
      for (let j = 0; j < tokens; j++) sum += maps[at + j] * out[j];
      next[i] = (1 - residual) * sum + residual * out[i];
    }
    out.set(next);
  }

  /**
   * Return one map per block (L, N, N): heads fused, the weakest patches of each row discarded, rows normalised to 1.
   * The result for the last settings is cached.
   *
   * @param {RolloutSettings} settings
   */
  fusedMaps({ fusion, discard }) {
    const by = `${fusion} ${discard}`;
    const { blocks, tokens, split, patches } = this.payload;
    const maps = this.fused ?? new Float32Array(blocks * tokens * tokens);
    if (this.fused && this.fusedKey === by) return maps;
    const weakest = Math.floor(discard * patches);
    for (let block = 0; block < blocks; block++)
      for (let i = 0; i < tokens; i++) {
        const from = (block * tokens + i) * tokens;
        const row = maps.subarray(from, from + tokens);
        this.fuseRow(block, i, fusion, row);
        if (weakest) discardWeakest(row, split, weakest, this.order);
        normalise(row);
      }
    this.fused = maps;
    this.fusedKey = by;
    return maps;
  }

  /**
   * Fuse a token's rows over all heads of a block. For "mean" this is their sum, which `normalise` scales afterwards.
   *
   * @param {number} block
   * @param {number} token
   * @param {Fusion} fusion
   * @param {Float32Array} row
   */
  fuseRow(block, token, fusion, row) {
    const { heads, tokens } = this.payload;
    const one = this.scratch;
    this.fill(block, 0, token, false, row, 0);
    for (let head = 1; head < heads; head++) {
      this.fill(block, head, token, false, one, 0);
      if (fusion === "mean") for (let j = 0; j < tokens; j++) row[j] += one[j];
      else if (fusion === "max") for (let j = 0; j < tokens; j++) row[j] = Math.max(row[j], one[j]);
      else for (let j = 0; j < tokens; j++) row[j] = Math.min(row[j], one[j]);
    }
  }
}

/** Queries and keys; a row or column of attention is computed as their product. */
export class QueriesKeys {
  /**
   * @param {Payload} payload
   * @param {Section} section
   */
  constructor(payload, section) {
    this.payload = payload;
    this.width = payload.header.width;
    this.halves = [section("queries", Uint16Array), section("keys", Uint16Array)];
    this.logSums = section("log_sums", Float32Array);
    this.size = payload.heads * payload.tokens * this.width; // numbers in one block's queries
    /** @type {(Float32Array | null)[][]} */
    this.decoded = [new Array(payload.blocks).fill(null), new Array(payload.blocks).fill(null)];
    this.lastUsed = [new Float64Array(payload.blocks), new Float64Array(payload.blocks)];
    this.capacity = Math.max(2, Math.floor(DECODED_BUDGET / (4 * this.size)));
    this.decodedCount = 0;
    this.clock = 0;
    this.vector = new Float32Array(this.width);
  }

  /**
   * Write one row or column of a head's map into out, see `Payload.fill`.
   *
   * @param {number} block
   * @param {number} head
   * @param {number} token
   * @param {boolean} to the token's column instead of its row
   * @param {Float32Array} out
   * @param {number} at
   */
  fill(block, head, token, to, out, at) {
    const { heads, tokens } = this.payload;
    const { width, vector, logSums } = this;
    const vectors = this.block(to ? 0 : 1, block);
    const sums = (block * heads + head) * tokens;
    decodeHalves(this.halves[to ? 1 : 0], (sums + token) * width, vector);
    const even = width - (width % 4);
    let from = head * tokens * width;
    for (let j = 0; j < tokens; j++, from += width) {
      let a = 0, b = 0, c = 0, d = 0;
      for (let e = 0; e < even; e += 4) {
        a += vector[e] * vectors[from + e];
        b += vector[e + 1] * vectors[from + e + 1];
        c += vector[e + 2] * vectors[from + e + 2];
        d += vector[e + 3] * vectors[from + e + 3];
      }
      for (let e = even; e < width; e++) a += vector[e] * vectors[from + e];
      out[at + j] = Math.exp(a + b + (c + d) - logSums[sums + (to ? j : token)]);
    }
  }

  /**
   * Return the queries (0) or keys (1) of a block as float32, decoded on first use.
   *
   * @param {number} which
   * @param {number} block
   */
  block(which, block) {
    const row = this.decoded[which];
    let numbers = row[block];
    if (!numbers) {
      const buffer = this.decodedCount < this.capacity ? new Float32Array(this.size) : this.evict();
      numbers = row[block] = decodeHalves(this.halves[which], block * this.size, buffer);
      this.decodedCount += 1;
    }
    this.lastUsed[which][block] = ++this.clock;
    return numbers;
  }

  /** Evict the least recently used entry and return its buffer for reuse. */
  evict() {
    let which = 0, block = -1;
    for (let w = 0; w < 2; w++)
      for (let b = 0; b < this.payload.blocks; b++)
        if (this.decoded[w][b] && (block < 0 || this.lastUsed[w][b] < this.lastUsed[which][block])) [which, block] = [w, b];
    const freed = /** @type {Float32Array} */ (this.decoded[which][block]);
    this.decoded[which][block] = null;
    this.decodedCount -= 1;
    return freed;
  }
}
