// Updates the controls from the selection.

import { methodMeaning } from "./captions.js";
import { setText } from "./page.js";
import { translate } from "./words.js";

/** @import { Page } from "./page.js" */
/** @import { State } from "./state.js" */
/** @import { Method, Selection } from "./types" */

/**
 * Update every control from the selection.
 *
 * @param {Page} page
 * @param {State} state
 */
export function updateControls(page, state) {
  const { selection } = state;
  updateFusions(page, state);
  updateSwitches(page, state);
  updateMethod(page, state.method);
  const components = state.payload.features && state.canRequestFeatures;
  page.find("[data-value=components]").hidden = page.find(".keys .components").hidden = !components;
  for (const control of page.settings) showValue(control, selection, state.payload.blocks);
  page.find(".mass").hidden = selection.contour !== "mass";
  updateSettings(page, state);
}

/**
 * Show the value of a setting in its control. A number is a block, counted from 1; a range is a share.
 *
 * @param {HTMLInputElement} control one of `Page.settings`
 * @param {Selection} selection
 * @param {number} blocks
 */
export function showValue(control, selection, blocks) {
  const value = selection[/** @type {keyof Selection} */ (control.dataset.field)];
  if (control.type === "checkbox") control.checked = Boolean(value);
  else if (control.type === "number") Object.assign(control, { value: Number(value) + 1, max: blocks });
  else control.value = String(value);
  if (control.type === "range" && control.nextElementSibling)
    setText(control.nextElementSibling, `${Math.round(100 * Number(value))}%`);
}

/**
 * Read the value of a setting from its control.
 *
 * @param {HTMLInputElement} control one of `Page.settings`
 * @param {number} blocks
 */
export function readValue({ type, value, checked }, blocks) {
  if (type === "checkbox") return checked;
  if (type === "number") return Math.min(Math.max(Math.round(Number(value)) || 1, 1), blocks) - 1;
  return type === "range" ? Number(value) : value;
}

/**
 * Update how all blocks, and all heads, are fused.
 *
 * @param {Page} page
 * @param {State} state
 */
function updateFusions(page, state) {
  page.control("fuse_blocks").value = state.fuseBlocks;
  page.control("fuse_heads").value = state.fuseHeads;
  setText(page.find(".fusion.blocks b"), translate(state.fuseBlocks));
  setText(page.find(".fusion.heads b"), translate(state.fuseHeads));
}

/**
 * @param {Page} page
 * @param {State} state
 */
function updateSwitches(page, state) {
  /** @type {Record<string, unknown>} */
  const chosen = { ...state.selection };
  for (const group of page.switches)
    for (const button of group.querySelectorAll("button"))
      button.setAttribute("aria-pressed", String(chosen[group.dataset.field ?? ""] === button.dataset.value));
  // An unpinned relevance map belongs to the class, which has no direction.
  const ofToken = state.selection.view !== "relevance" || state.selection.pinned;
  page.find("[data-field=direction]").hidden = !state.hasDirection || !ofToken;
}

/**
 * Update the button of the view "relevance", which is hidden without a method.
 *
 * @param {Page} page
 * @param {Method | null} method
 */
function updateMethod(page, method) {
  const button = page.find("[data-value=relevance]");
  button.hidden = page.find(".keys .relevance").hidden = !method;
  setText(button, method?.title ?? "");
  button.title = method ? methodMeaning(method) : "";
}

/**
 * Show only the settings of the method that apply to the current view.
 *
 * @param {Page} page
 * @param {State} state
 */
function updateSettings(page, { settings }) {
  /** @type {NodeListOf<HTMLElement>} */
  const labels = page.root.querySelectorAll("[data-setting]");
  for (const label of labels) label.hidden = !settings.some((name) => name === label.dataset.setting);
}
