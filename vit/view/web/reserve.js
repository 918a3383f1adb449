// Reserves space for a payload that is still loading, so that the layout does not shift when it arrives.

import { Mosaic } from "./canvas.js";
import { Chips } from "./chips.js";
import { reflect } from "./controls.js";
import { describe } from "./drawing.js";
import { measure, offer, placeMaps, placePicture } from "./layout.js";
import { Outline } from "./payload.js";

/** @import { Header } from "./types" */
/** @import { Viewer } from "./viewer.js" */

/**
 * Lay out the viewer for a payload's header.
 *
 * @param {Viewer} viewer viewer without a payload
 * @param {Header} header
 */
export function reserve({ page, root, state, judge }, header) {
  const outline = new Outline(header);
  const mosaic = new Mosaic(page.gridCanvas, outline);
  page.find(".instrument").hidden = false;
  root.toggleAttribute("data-reserved", true);
  placePicture(page, outline);
  placeMaps(page, outline, mosaic);
  offer(page, outline);
  new Chips(page, outline);
  state.turnTo(outline);
  state.settle();
  state.keepFusions();
  reflect(page, state);
  describe(page, state);
  judge.reserve();
  measure(page, mosaic);
}
