// Computes and paints all maps of the grid for the query: at once, or over several frames for large models.

import { strongest } from "./maps.js";

/** @import { Viewer } from "./viewer.js" */

const FRAME_BUDGET = 6; // [ms] per frame for the maps of a large model
const QUICK_PRODUCTS = 16e6; // multiplications for all maps that still follow the pointer, about 15 ms
const REST = 100; // [ms] that the pointer must rest before slower maps are computed
const STALE = -2; // not a token: every map must be repainted

/** The grid of maps of a viewer's payload. */
export class Grid {
  /** @param {Viewer} viewer */
  constructor(viewer) {
    this.viewer = viewer;
    this.engine = viewer.engine;
    this.mosaic = viewer.mosaic;
    this.payload = viewer.payload;
    this.token = STALE; // token whose maps are painted
    this.frame = this.rest = 0;
  }

  /** Cancel pending work. */
  stop() {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.rest);
    this.viewer.root.removeAttribute("data-busy");
  }

  /** Invalidate every map, because colours or scale may have changed. */
  repaint() {
    this.token = STALE;
  }

  /** Draw the current query. Large models begin with the row of the map over the picture. */
  draw() {
    const { engine, viewer, payload } = this;
    const { state } = viewer;
    engine.setQuery(state.query, state.selection.direction, state.fuseBlocks, state.fuseHeads);
    if (payload.quick) {
      engine.computeAll();
      if (this.token !== engine.token) this.paintAll();
    } else if (!engine.complete || this.token !== engine.token) this.continueLater(state.cell.r);
  }

  /** Paint every map. */
  paintAll() {
    for (let r = 0; r <= this.payload.lines; r++) this.paintRow(r);
    this.mosaic.show();
    this.token = this.engine.token;
  }

  /** @param {number} r */
  paintRow(r) {
    const { payload, engine, mosaic, viewer } = this;
    const { split, tokens } = payload;
    const own = viewer.selection.scale === "own";
    const shared = r > payload.blocks ? payload.poolTop : viewer.group.sharedTop(engine.token, engine.direction);
    for (let c = 0; c <= payload.heads; c++) {
      const at = engine.offset(r, c);
      const top = own ? strongest(engine.values, at, split, tokens, -1) : shared;
      mosaic.tile(r, c, engine.values, at + split, top, viewer.colours.lut);
    }
  }

  /**
   * Paint a row that was computed outside of this class.
   *
   * @param {number} r
   */
  showRow(r) {
    this.paintRow(r);
    this.mosaic.show();
  }

  /**
   * Compute and paint the maps of a large model over the following frames.
   *
   * @param {number} first row to begin with
   */
  continueLater(first) {
    const { engine, mosaic, payload, viewer } = this;
    if (this.token === STALE) {
      for (let r = 0; r <= payload.lines; r++) if (engine.done[r]) this.paintRow(r);
      mosaic.show();
    }
    this.token = engine.token;
    this.stop();
    if (engine.complete) return;
    viewer.root.toggleAttribute("data-busy", true);
    const begin = () => (this.frame = requestAnimationFrame(() => this.work(first)));
    const products = payload.blocks * payload.heads * payload.tokens * payload.header.width;
    if (products < QUICK_PRODUCTS) begin();
    else this.rest = setTimeout(begin, REST);
  }

  /**
   * Compute and paint as many maps as fit into this frame.
   *
   * @param {number} first
   */
  work(first) {
    const { engine, mosaic, viewer } = this;
    const began = performance.now();
    let painted = false;
    while (!engine.complete && performance.now() - began < FRAME_BUDGET) {
      const row = engine.step(first);
      if (row >= 0) this.paintRow(row);
      painted ||= row >= 0;
    }
    if (painted) mosaic.show();
    if (!engine.complete) {
      this.frame = requestAnimationFrame(() => this.work(first));
      return;
    }
    viewer.root.removeAttribute("data-busy");
    if (viewer.cell.r === 0) viewer.request(); // the summary over the picture had to wait for all blocks
  }
}
