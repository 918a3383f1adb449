// Draws one viewer: computes the map over the picture, paints it and updates its captions.

import { afterBlock, answerText, matchesSentence, position, occlusionText, regionText, sentence, settingsText, waitingText } from "./captions.js";
import { highlightLabel, placeOverCell } from "./layout.js";
import { isTouch, setText } from "./page.js";
import { readChain } from "./payload.js";
import { findPayloadByName } from "./payload_registry.js";
import { comparesFeatures } from "./selection.js";

/** @import { Page } from "./page.js" */
/** @import { State } from "./state.js" */
/** @import { View } from "./types" */
/** @import { Viewer } from "./viewer.js" */

/**
 * Draw the selection and whatever is under the pointer.
 *
 * @param {Viewer} viewer
 */
export function draw(viewer) {
  const { map, state, picture, readings } = viewer;
  const { view } = state;
  const source = viewer.group.matchSource(view);
  const query = source ? -1 : state.queryOf(view);
  viewer.grid.draw();
  computeMap(viewer, view, query, source);
  const mean = picture.meanColour(map);
  paintMap(viewer, view, query, mean);
  markMaps(viewer);
  drawCaption(viewer, view, source);
  drawOcclusion(viewer);
  drawAblation(viewer);
  drawRegion(viewer, view);
  viewer.faithfulnessBox.draw();
  if (!map.ready) return;
  if (comparesFeatures(view)) readings.drawSimilar(map, state, query);
  else readings.draw(map, state, view, query);
  viewer.chips.draw(map, view, query, state.selection, viewer.colours);
  drawLegend(viewer, view, query, mean);
}

/**
 * Compute the map over the picture and the end of its colour scale.
 *
 * @param {Viewer} viewer
 * @param {View} view
 * @param {number} query token that the map belongs to
 * @param {Viewer | null} leader viewer whose token is matched here, if any
 */
function computeMap(viewer, view, query, leader) {
  const { map, state, group, computed } = viewer;
  if (view === "rollout") map.showRollout(state, computed);
  else if (view === "relevance") map.showRelevance(state, chainOf(viewer), computed);
  else {
    if (comparesFeatures(view)) group.commonTop(view, 0);
    if (view === "similar") map.showSimilar(state, viewer.features, leader);
    else if (view === "components") map.showComponents(state, viewer.features, leader);
    else computeCell(viewer, view);
    return;
  }
  const top = map.ready ? group.commonTop(view, map.strongest(query)) : 1;
  map.setTop(view === "relevance" ? top || 1 : top);
}

/**
 * Compute a map of the grid. It ends at its strongest patch, because many maps would be invisible on the grid's scale,
 * but not above that scale, where one strong patch would hide the others.
 *
 * @param {Viewer} viewer
 * @param {View} view
 */
function computeCell({ engine, payload, state, group, map, grid }, view) {
  const { r } = state.cell;
  const before = engine.done[r];
  map.showCell(engine, state);
  const shared = view === "pool" ? payload.poolTop : group.sharedTop(state.query, state.selection.direction);
  const most = map.ready ? group.commonTop(view, map.strongest(-1)) : shared;
  map.top = state.selection.scale === "own" ? most : Math.min(most, shared);
  if (engine.done[r] && !before) grid.showRow(r); // computed outside of `Grid`, which will not paint it again
}

/**
 * Return the chain that the class's map is traced through; null until it has loaded.
 *
 * @param {Viewer} viewer
 */
function chainOf({ state }) {
  const id = state.method?.chain;
  return id ? findPayloadByName(id, readChain) : null;
}

/**
 * Paint the map and outline its patches.
 *
 * @param {Viewer} viewer
 * @param {View} view
 * @param {number} query
 * @param {number} mean mean colour index of its patches, 0 to 255
 */
function paintMap({ page, map, picture, colours, legend, state }, view, query, mean) {
  const { selection, readKey } = state;
  page.root.classList.toggle("signed", map.signed);
  if (colours.fade(mean, selection.opacity, selection.cover, map.signed)) legend.paintRamp(colours);
  picture.paint(map, view, colours, selection.smooth);
  picture.drawContour(map, selection);
  picture.outlinePatches(query, readKey, comparesFeatures(view) && map.ready ? map : null);
}

/**
 * Mark the selected map of the grid and the one under the pointer.
 *
 * @param {Viewer} viewer
 */
function markMaps({ page, mosaic, state }) {
  const { view } = state.selection;
  const cell = view === "attention" || view === "pool" ? state.selectedCell : null;
  placeOverCell(page.find(".mark.selected"), mosaic, cell);
  placeOverCell(page.find(".mark.previewed"), mosaic, state.preview);
  highlightLabel(page.find(".labels.rows"), cell ? cell.r - 1 : -1);
  highlightLabel(page.find(".labels.columns"), cell ? cell.c - 1 : -1);
}

/**
 * Write the sentence that describes the map.
 *
 * @param {Page} page
 * @param {State} state
 * @param {Viewer | null} [source] viewer whose token is matched here, if any
 */
export function drawSentence(page, state, source) {
  const { method, payload, selection, view } = state;
  const { direction } = selection;
  const { r, c } = state.cell;
  const token = view === "relevance" ? state.queryOf(view) : state.query;
  const settings = view === selection.view ? settingsText(state.settings, selection) : "";
  const after = afterBlock(selection.after_block, payload.blocks);
  const subject = { view, direction, block: state.blockOf(r), head: state.headOf(c), token, method, settings, after };
  const matches = source && matchesSentence(source.payload, source.state.query, after);
  setText(page.find(".sentence"), matches ?? sentence(payload, subject));
  page.find(".aside").hidden = view === "attention" || view === "pool";
}

/**
 * Write the sentence, and a note if the map is not ready.
 *
 * @param {Viewer} viewer
 * @param {View} view
 * @param {Viewer | null} source viewer whose token is matched here, if any
 */
function drawCaption({ page, state, map, alone }, view, source) {
  const { method, selection } = state;
  const { pinned } = selection;
  drawSentence(page, state, source);
  const waiting = !map.ready && (view === "rollout" || view === "relevance" || comparesFeatures(view));
  page.find(".note").hidden = !waiting;
  setText(page.find(".note"), waiting ? waitingText(view, method, pinned, alone) : "");
  page.root.classList.toggle("pinned", pinned);
}

/**
 * Describe how the answer changes without the patch under the pointer.
 *
 * @param {Viewer} viewer
 */
function drawOcclusion({ page, occlusion, payload, state }) {
  const element = page.find(".occlusion");
  element.hidden = occlusion?.after.length !== payload.patches;
  if (!occlusion || element.hidden) return;
  const token = state.readKey >= payload.split ? state.readKey : state.hovered;
  const patch = token - payload.split;
  if (patch < 0) setText(element, `${isTouch() ? "Tap" : "Point at"} a patch to replace it.`);
  else if (state.selection.hidden.includes(patch)) setText(element, "This patch is hidden already.");
  else setText(element, occlusionText(occlusion, patch, position(payload, token)));
}

/**
 * Describe how the answer changes by the hidden patches and the heads that are off, once Python has computed it.
 *
 * @param {Viewer} viewer
 */
function drawAblation({ page, ablation, state }) {
  const element = page.find(".ablation");
  element.hidden = ablation?.hidden.join() !== state.selection.hidden.join();
  if (ablation && !element.hidden) setText(element, `After the change: ${answerText(ablation)}`);
}

/**
 * Say how much of the map the hidden patches hold.
 *
 * @param {Viewer} viewer
 * @param {View} view
 */
function drawRegion({ page, map, payload, state, alone }, view) {
  const { hidden } = state.selection;
  const element = page.find(".region");
  element.hidden = alone || page.find(".painting").hidden || !map.ready || !hidden.length || comparesFeatures(view);
  if (!element.hidden) setText(element, regionText(map.values.subarray(map.at + payload.split, map.at + payload.tokens), hidden, map.signed));
}

/**
 * @param {Viewer} viewer
 * @param {View} view
 * @param {number} query
 * @param {number} mean
 */
function drawLegend({ legend, map, state, group, readings, features }, view, query, mean) {
  const { selection } = state;
  const clear = selection.cover === "film" ? 0 : mean;
  legend.draw(map, view, selection, clear, group.shares(view), query, readings.value, state.sumsToOne(view), features);
}
