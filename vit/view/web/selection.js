// A selection, as `vit.view.selection` has it, brought into what another payload has. No DOM here.

/** @import { Outline } from "./payload.js" */
/** @import { Fusion, Method, Selection, TokenLayout, View } from "./types" */

const FUSIONS = ["mean", "max", "min"];

/**
 * Whether a block or head is not one of them but a way to fuse them all.
 *
 * @param {unknown} value
 * @returns {value is Fusion}
 */
export function isFusion(value) {
  return typeof value === "string" && FUSIONS.includes(value);
}

/**
 * Whether a view compares a token's features with those of others.
 *
 * @param {View} view
 */
export function ofFeatures(view) {
  return view === "similar" || view === "components";
}

/**
 * The same token of another picture or model: by name, or by its place on a grid that may be finer.
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
 * The token so many patches away, inside the grid; from a prefix token one enters the picture in the middle.
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
 * A value brought between two.
 *
 * @param {number} value
 * @param {number} least
 * @param {number} most
 */
function clamp(value, least, most) {
  return Math.min(Math.max(value, least), most);
}

/**
 * Bring a selection into what a payload has.
 *
 * @param {Selection} selection
 * @param {Pick<Outline, "blocks" | "heads" | "tokens" | "patches" | "features" | "pool" | "colormaps">} payload
 * @param {Method | null} method
 * @param {boolean} readable features after any block, and their components, can be had
 */
export function fit(selection, payload, method, readable) {
  /** @type {(value: number | Fusion, count: number) => number | Fusion} */
  const index = (value, count) => (isFusion(value) ? value : clamp(Number.isInteger(value) ? value : count - 1, 0, count - 1));
  selection.block = index(selection.block, payload.blocks);
  selection.head = index(selection.head, payload.heads);
  if (!(Number.isInteger(selection.token) && selection.token >= 0 && selection.token < payload.tokens)) {
    selection.token = 0;
    selection.pinned = false;
  }
  const { features, pool } = payload;
  const components = features && readable;
  const missing = { attention: false, rollout: false, relevance: !method, similar: !features, components: !components, pool: !pool };
  if (missing[selection.view]) selection.view = "attention";
  selection.hidden = (selection.hidden ?? []).filter((patch) => Number.isInteger(patch) && patch >= 0 && patch < payload.patches);
  const last = payload.blocks - 1;
  selection.after_block = readable ? /** @type {number} */ (index(selection.after_block, payload.blocks)) : last;
  selection.start_block = Math.min(selection.start_block, payload.blocks - 1);
  if (!payload.colormaps.has(selection.colormap)) selection.colormap = payload.colormaps.keys().next().value ?? "";
}
