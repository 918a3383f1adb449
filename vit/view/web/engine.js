// Computes every map of the grid for one query: L x H heads, a summary per block, a summary per head, and a last row
// for the pooling query if the model has one. No DOM access.

import { fuse } from "./maps.js";

/** @import { Payload } from "./payload.js" */
/** @import { Direction, Fusion } from "./types" */

/** All maps of one query, computed one head at a time. */
export class Engine {
  /** @param {Payload} payload */
  constructor(payload) {
    this.payload = payload;
    const { lines, heads, tokens } = payload;
    this.columns = heads + 1;
    this.values = new Float32Array((lines + 1) * this.columns * tokens); // cell (0, ·): over blocks, (·, 0): over heads
    this.done = new Uint8Array(lines + 1); // 1 for rows computed for the current query
    this.left = lines + 1;
    this.current = -1; // row that `step` is computing
    this.ready = 0; // heads of that row that are done
    this.token = -1;
    /** @type {Direction} */
    this.direction = "from";
    /** @type {Fusion} */
    this.fuseBlocks = "mean";
    /** @type {Fusion} */
    this.fuseHeads = "mean";
  }

  get complete() {
    return this.left === 0;
  }

  /**
   * Return the offset of a cell's map in `values`.
   *
   * @param {number} r
   * @param {number} c
   */
  offset(r, c) {
    return (r * this.columns + c) * this.payload.tokens;
  }

  /**
   * Set the query; returns whether anything is left to compute.
   *
   * @param {number} token
   * @param {Direction} direction
   * @param {Fusion} fuseBlocks
   * @param {Fusion} fuseHeads
   */
  setQuery(token, direction, fuseBlocks, fuseHeads) {
    if (
      token !== this.token || direction !== this.direction ||
      fuseBlocks !== this.fuseBlocks || fuseHeads !== this.fuseHeads
    ) {
      this.token = token;
      this.direction = direction;
      this.fuseBlocks = fuseBlocks;
      this.fuseHeads = fuseHeads;
      this.done.fill(0);
      this.current = -1;
      this.left = this.done.length;
    }
    return !this.complete;
  }

  /**
   * Compute row r of the grid. Row 0 requires all others to be done.
   *
   * @param {number} r
   */
  computeRow(r) {
    if (this.done[r]) return;
    if (r > 0) for (let c = 1; c < this.columns; c++) this.computeHead(r, c);
    this.summarise(r);
  }

  /**
   * Compute one head of the next unfinished row, in cyclic order from row r; returns the row when it is done, else -1.
   *
   * @param {number} r
   */
  step(r) {
    // One call computes one head, so that a frame can stop between any two. `ready` counts the heads of the current
    // row; when the pointer moves to another row, that one is begun from its first head, because rows are only marked
    // as done whole. Row 0, the fusion of all blocks, has no heads of its own and comes last.
    const row = this.nextRow(r);
    if (row !== this.current) this.ready = 0;
    this.current = row;
    if (row > 0) this.computeHead(row, ++this.ready);
    if (row > 0 && this.ready < this.payload.heads) return -1;
    this.summarise(row);
    this.current = -1;
    return row;
  }

  /**
   * Finish a row by fusing its heads; row 0 fuses the blocks of every column.
   *
   * @param {number} r
   */
  summarise(r) {
    const { blocks, heads, tokens } = this.payload;
    const stride = this.columns * tokens;
    if (r > 0) fuse(this.fuseHeads, this.values, this.offset(r, 1), tokens, heads, this.offset(r, 0), tokens);
    else
      for (let c = 0; c < this.columns; c++)
        fuse(this.fuseBlocks, this.values, this.offset(1, c), stride, blocks, this.offset(0, c), tokens);
    this.done[r] = 1;
    this.left -= 1;
  }

  /**
   * Compute the map of one head.
   *
   * @param {number} r
   * @param {number} c
   */
  computeHead(r, c) {
    this.payload.fill(r - 1, c - 1, this.token, this.direction, this.values, this.offset(r, c));
  }

  /** Compute every unfinished row. */
  computeAll() {
    for (let r = this.done.length - 1; r >= 0; r--) this.computeRow(r);
  }

  /**
   * Return the next row to compute, in cyclic order from row r; row 0 comes last.
   *
   * @param {number} r
   */
  nextRow(r) {
    const { lines } = this.payload;
    for (let i = 0; i < lines; i++) {
      const row = ((Math.max(r, 1) - 1 + i) % lines) + 1;
      if (!this.done[row]) return row;
    }
    return 0;
  }

  /**
   * Compute one cell at once if possible; false for cells of row 0, which need all blocks.
   *
   * @param {number} r
   * @param {number} c
   */
  ensureCell(r, c) {
    if (this.done[r]) return true;
    if (r === 0) return false;
    if (c === 0) this.computeRow(r);
    else this.computeHead(r, c);
    return true;
  }
}
