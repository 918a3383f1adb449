// Reserves space for a payload that is still loading, so that the layout does not shift when it arrives.

import { Mosaic } from "./canvas.js";
import { Chips } from "./chips.js";
import { updateControls } from "./controls.js";
import { drawSentence } from "./drawing.js";
import { updateSize, showAvailable, placeMaps, placePicture } from "./layout.js";
import { PayloadLayout } from "./payload.js";

/** @import { Header } from "./types" */
/** @import { Viewer } from "./viewer.js" */

/**
 * Lay out the viewer for a payload's header.
 *
 * @param {Viewer} viewer viewer without a payload
 * @param {Header} header
 */
export function reserve({ page, root, state, faithfulnessBox }, header) {
  const outline = new PayloadLayout(header);
  const mosaic = new Mosaic(page.gridCanvas, outline);
  page.find(".instrument").hidden = false;
  root.toggleAttribute("data-reserved", true);
  placePicture(page, outline);
  placeMaps(page, outline, mosaic);
  showAvailable(page, outline);
  new Chips(page, outline);
  state.setPayload(outline);
  state.fitSelection();
  state.rememberFusions();
  updateControls(page, state);
  drawSentence(page, state);
  faithfulnessBox.reserve();
  updateSize(page, mosaic);
}
