// Fits a selection (`vit.view.selection`) to a payload. No DOM access.

/** @import { PayloadLayout } from "./payload.js" */
/** @import { Fusion, Method, Selection, TokenLayout, View } from "./types" */

const FUSIONS = ["mean", "max", "min"];

/**
 * Whether a block or head is not an index but a way to fuse all of them.
 *
 * @param {unknown} value
 * @returns {value is Fusion}
 */
export function isFusion(value) {
  return typeof value === "string" && FUSIONS.includes(value);
}

/**
 * Whether a view compares features of tokens.
 *
 * @param {View} view
 */
export function comparesFeatures(view) {
  return view === "similar" || view === "components";
}

/**
 * Return the corresponding token of another picture or model: a prefix token by name, a patch by its centre.
 *
 * @param {number} token
 * @param {TokenLayout} source
 * @param {TokenLayout} target
 */
export function counterpart(token, source, target) {
  if (token < 0) return token;
  if (token < source.split) return Math.max(0, target.prefix.indexOf(source.prefix[token]));
  const row = Math.floor((token - source.split) / source.cols), col = (token - source.split) % source.cols;
  const down = Math.floor(((row + 0.5) / source.rows) * target.rows);
  return target.split + down * target.cols + Math.floor(((col + 0.5) / source.cols) * target.cols);
}

/**
 * Return the token a number of patches away, clamped to the grid. From a prefix token it is the middle patch.
 *
 * @param {number} token
 * @param {TokenLayout} layout
 * @param {number} down
 * @param {number} right
 */
export function neighbour(token, { split, rows, cols }, down, right) {
  const patch = token - split;
  if (patch < 0) return split + (rows >> 1) * cols + (cols >> 1);
  const row = clamp(Math.floor(patch / cols) + down, 0, rows - 1);
  return split + row * cols + clamp((patch % cols) + right, 0, cols - 1);
}

/**
 * Clamp a value.
 *
 * @param {number} value
 * @param {number} least
 * @param {number} most
 */
function clamp(value, least, most) {
  return Math.min(Math.max(value, least), most);
}

/**
 * Fit a selection to a payload, in place.
 *
 * @param {Selection} selection
 * @param {Pick<PayloadLayout, "blocks" | "heads" | "tokens" | "patches" | "features" | "pool" | "colormaps">} payload
 * @param {Method | null} method
 * @param {boolean} canRequestFeatures features after any block, and their components, are available on request
 */
export function fit(selection, payload, method, canRequestFeatures) {
  /** @type {(value: number | Fusion, count: number) => number | Fusion} */
  const index = (value, count) => (isFusion(value) ? value : clamp(Number.isInteger(value) ? value : count - 1, 0, count - 1));
  selection.block = index(selection.block, payload.blocks);
  selection.head = index(selection.head, payload.heads);
  if (!(Number.isInteger(selection.token) && selection.token >= 0 && selection.token < payload.tokens)) {
    selection.token = 0;
    selection.pinned = false;
  }
  const { features, pool } = payload;
  const components = features && canRequestFeatures;
  const missing = { attention: false, rollout: false, relevance: !method, similar: !features, components: !components, pool: !pool };
  if (missing[selection.view]) selection.view = "attention";
  selection.hidden = (selection.hidden ?? []).filter((patch) => Number.isInteger(patch) && patch >= 0 && patch < payload.patches);
  const last = payload.blocks - 1;
  selection.after_block = canRequestFeatures ? /** @type {number} */ (index(selection.after_block, payload.blocks)) : last;
  selection.start_block = Math.min(selection.start_block, payload.blocks - 1);
  if (!payload.colormaps.has(selection.colormap)) selection.colormap = payload.colormaps.keys().next().value ?? "";
}
