// All maps of the grid, computed and painted for the query: at once, or over the next frames where that takes longer.

import { strongest } from "./maps.js";

/** @import { Viewer } from "./viewer.js" */

const FRAME_BUDGET = 6; // ms of a frame that the maps of a large model may take
const QUICK_PRODUCTS = 16e6; // multiplications that all maps may take and still follow the pointer: about 15 ms
const REST = 100; // ms that the pointer rests before slower ones are computed
const STALE = -2; // no token: every map is to be painted again

/** The grid of a viewer's payload. */
export class Grid {
  /** @param {Viewer} viewer whose engine and mosaic these are */
  constructor(viewer) {
    this.viewer = viewer;
    this.engine = viewer.engine;
    this.mosaic = viewer.mosaic;
    this.payload = viewer.payload;
    this.token = STALE; // that is painted
    this.frame = this.rest = 0;
  }

  /** Compute and paint nothing later. */
  stop() {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.rest);
    this.viewer.root.removeAttribute("data-busy");
  }

  /** Colours or scale may differ: paint every map again. */
  repaint() {
    this.token = STALE;
  }

  /** Turn to what is asked; the row of the large map comes first. */
  draw() {
    const { engine, viewer, payload } = this;
    const { state } = viewer;
    engine.ask(state.query, state.selection.direction, state.fuseBlocks, state.fuseHeads);
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
   * Paint a row that somebody else has computed.
   *
   * @param {number} r
   */
  showRow(r) {
    this.paintRow(r);
    this.mosaic.show();
  }

  /**
   * Compute and paint the maps of a large model over the next frames.
   *
   * @param {number} first the row to begin with
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
   * Compute and paint what fits into this frame.
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
    if (viewer.cell.r === 0) viewer.request(); // the summary on the picture had to wait for this
  }
}
