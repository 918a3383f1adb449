// Payloads in the browser: the attention and features of a picture, and the chain of a class. No DOM access.

import { Maps, QueriesKeys } from "./attention.js";
import { decodeHalves, openPayload } from "./bytes.js";

/** @import { Section } from "./bytes.js" */
/** @import { Direction, Header, RolloutSettings } from "./types" */

/** The header of a payload, which is enough for the layout. */
export class PayloadLayout {
  /** @param {Header} header */
  constructor(header) {
    this.header = header;
    this.blocks = header.blocks;
    this.heads = header.heads;
    this.tokens = header.tokens;
    this.prefix = header.prefix;
    this.split = header.prefix.length; // S, index of the first patch
    this.rows = header.grid[0];
    this.cols = header.grid[1];
    this.patches = this.rows * this.cols;
    /** @type {unknown} */
    this.features = header.sections.features; // undefined if there are none
    /** @type {unknown} */
    this.pool = header.sections.pool;
    /** @type {Pick<ReadonlySet<string>, "has" | "keys">} */
    this.colormaps = new Set(header.colormaps);
    this.lines = this.blocks + (this.pool ? 1 : 0); // rows of maps: one per block, and one for the pooling query
    this.quick = header.kind === "maps"; // small enough to compute every map within a frame
  }
}

/** The data of a picture, see `vit.view.payload.pack`. */
export class Payload extends PayloadLayout {
  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    const { header, section } = openPayload(bytes);
    super(header);
    this.picture = section("picture", Uint8Array);
    /** @type {Map<string, Uint8Array>} */
    this.colormaps = new Map(header.colormaps.map((name) => /** @type {const} */ ([name, section(`colormap:${name}`, Uint8Array)])));
    this.attention = header.kind === "maps" ? new Maps(this, section) : new QueriesKeys(this, section);
    this.tops = section("tops", Float32Array);
    /** @type {Features | null} */
    this.features = header.sections.features ? new Features(header, section, header.blocks - 1) : null;
    /** @type {Float32Array | null} */
    this.pool = header.sections.pool ? section("pool", Float32Array) : null; // (H, N)
    this.poolTop = header.pool_top ?? 0;
    this.artefacts = header.artefacts ?? [];
  }

  /**
   * Write one head's attention from (row) or to (column) a token, N numbers, into out at index `at`.
   * Block L is the pooling query, which ignores token and direction.
   *
   * @param {number} block
   * @param {number} head
   * @param {number} token
   * @param {Direction} direction
   * @param {Float32Array} out
   * @param {number} at
   */
  fill(block, head, token, direction, out, at) {
    const { pool, tokens } = this;
    if (pool && block === this.blocks) for (let i = 0, from = head * tokens; i < tokens; i++) out[at + i] = pool[from + i];
    else this.attention.fill(block, head, token, direction === "to", out, at);
  }

  /**
   * Return the end of the colour scale that all blocks and heads share for this query.
   *
   * @param {number} token
   * @param {Direction} direction
   */
  top(token, direction) {
    return this.tops[direction === "to" ? this.tokens + token : token];
  }

  /**
   * Write the rollout of one token into out (N); does nothing unless the payload is `quick`.
   *
   * @param {number} token
   * @param {Direction} direction
   * @param {RolloutSettings} settings
   * @param {Float32Array} out
   */
  rollout(token, direction, settings, out) {
    if (this.attention instanceof Maps) this.attention.rollout(token, direction, settings, out);
  }
}

/** The relevance matrices of all blocks, see `vit.view.payload.pack_chain`. */
export class Chain {
  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    const { header, section } = openPayload(bytes);
    this.blocks = header.blocks;
    this.tokens = header.tokens;
    const numbers = section("matrices", Uint16Array);
    this.matrices = decodeHalves(numbers, 0, new Float32Array(numbers.length)); // (L, N, N)
    this.scales = section("scales", Float32Array); // (L)
    this.start = section("start", Float32Array); // (N)
    this.scratch = new Float32Array(this.tokens);
  }

  /**
   * Write a token's relevance, normalised to a sum of 1, into out (N): what it drew on, or for "to" which tokens drew
   * on it. Token -1 means the class itself.
   *
   * @param {number} token
   * @param {Direction} direction
   * @param {number} first first block; earlier blocks are skipped
   * @param {Float32Array} out
   */
  trace(token, direction, first, out) {
    const { blocks, tokens, start } = this;
    const to = direction === "to" && token >= 0;
    if (token < 0) out.set(start);
    else out.fill(0)[token] = 1;
    for (let step = 0; step < blocks - first; step++) this.addBlock(to ? first + step : blocks - 1 - step, to, out);
    let sum = 0;
    for (let j = 0; j < tokens; j++) sum += out[j] -= token < 0 ? start[j] : j === token ? 1 : 0; // without its initial value
    if (sum > 0) for (let j = 0; j < tokens; j++) out[j] /= sum;
  }

  /**
   * Add one block's contribution to out: out times its matrix, or for `to` its matrix times out.
   *
   * @param {number} block
   * @param {boolean} to
   * @param {Float32Array} out
   */
  addBlock(block, to, out) {
    const { tokens, matrices, scales, scratch } = this;
    scratch.fill(0);
    for (let i = 0, at = block * tokens * tokens; i < tokens; i++, at += tokens) {
      if (to) {
        let sum = 0;
        for (let j = 0; j < tokens; j++) sum += matrices[at + j] * out[j];
        scratch[i] = sum;
      } else if (out[i] !== 0) for (let j = 0; j < tokens; j++) scratch[j] += out[i] * matrices[at + j];
    }
    for (let j = 0; j < tokens; j++) out[j] += scales[block] * scratch[j];
  }
}

/** A map of the class that the server improves, see `vit.view.payload.pack_map`. */
export class GrowingMap {
  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    const { header, section } = openPayload(bytes);
    this.tokens = header.tokens;
    this.values = section("values", Float32Array);
  }

  /**
   * Write the map into out (N), like `Chain.trace`.
   *
   * @param {number} _token
   * @param {Direction} _direction
   * @param {number} _first
   * @param {Float32Array} out
   */
  trace(_token, _direction, _first, out) {
    out.set(this.values);
  }
}

/**
 * Decode what the maps of a method come from.
 *
 * @param {Uint8Array} bytes
 */
export function readChain(bytes) {
  return openPayload(bytes).header.kind === "map" ? new GrowingMap(bytes) : new Chain(bytes);
}

/** Quantised tokens after a block. */
export class Features {
  /**
   * @param {Header} header
   * @param {Section} section
   * @param {number} block
   */
  constructor(header, section, block) {
    this.bytes = section("features", Int8Array);
    this.units = section("units", Float32Array);
    this.tokens = header.tokens;
    this.width = this.bytes.length / header.tokens; // D
    this.block = block;
    this.colours = header.sections.colours ? section("colours", Uint8Array) : null; // (P, 3), principal components
    this.shares = header.shares ?? []; // of the variance, per colour
    this.pictures = header.pictures ?? 1; // number of pictures that the components were computed from
  }

  /**
   * Decode the bytes of `vit.view.payload.pack_features`.
   *
   * @param {Uint8Array} bytes
   */
  static read(bytes) {
    const { header, section } = openPayload(bytes);
    return new Features(header, section, header.block ?? -1);
  }

  /**
   * Write the cosines of one token with every token into out (N).
   *
   * @param {number} token
   * @param {Float32Array} out
   * @param {Features} [source] features that the token belongs to, of another picture with the same width
   */
  cosines(token, out, source = this) {
    const { bytes, units, tokens, width } = this;
    const { bytes: other } = source;
    const even = width - (width % 4);
    const one = token * width;
    for (let j = 0, from = 0; j < tokens; j++, from += width) {
      let a = 0, b = 0; // int32 sums: 127² times a width of 100,000 still fits
      for (let e = 0; e < even; e += 4) {
        a = (a + other[one + e] * bytes[from + e] + other[one + e + 1] * bytes[from + e + 1]) | 0;
        b = (b + other[one + e + 2] * bytes[from + e + 2] + other[one + e + 3] * bytes[from + e + 3]) | 0;
      }
      for (let e = even; e < width; e++) a = (a + other[one + e] * bytes[from + e]) | 0;
      out[j] = (a + b) * source.units[token] * units[j];
    }
  }
}
