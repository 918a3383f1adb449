// Updates the controls from the selection.

import { methodMeaning } from "./captions.js";
import { setText } from "./page.js";
import { translate } from "./words.js";

/** @import { Page } from "./page.js" */
/** @import { State } from "./state.js" */
/** @import { Method, Selection } from "./types" */

/** @type {("residual" | "discard" | "mass")[]} */
export const SHARES = ["residual", "discard", "mass"]; // fields of a selection that have sliders

/** @type {("start_block" | "after_block")[]} */
export const NUMBERS = ["start_block", "after_block"]; // fields of a selection that hold a block index

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
  page.control("colormap").value = selection.colormap;
  page.control("opacity").value = String(selection.opacity);
  page.control("smooth").checked = selection.smooth;
  page.control("contour").value = selection.contour;
  page.control("cover").value = selection.cover;
  page.find(".mass").hidden = selection.contour !== "mass";
  updateSliders(page, selection);
  updateSettings(page, state);
}

/**
 * Update the sliders and the percentages beside them.
 *
 * @param {Page} page
 * @param {Selection} selection
 */
export function updateSliders(page, selection) {
  for (const name of SHARES) {
    const slider = page.control(name);
    slider.value = String(selection[name]);
    if (slider.nextElementSibling) setText(slider.nextElementSibling, `${Math.round(100 * selection[name])} %`);
  }
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
 * Show only the settings that apply to the current view.
 *
 * @param {Page} page
 * @param {State} state
 */
function updateSettings(page, { selection, settings, payload }) {
  /** @type {NodeListOf<HTMLElement>} */
  const labels = page.root.querySelectorAll("[data-setting]");
  for (const label of labels) label.hidden = !settings.some((name) => name === label.dataset.setting);
  page.control("fusion").value = selection.fusion;
  for (const name of NUMBERS) Object.assign(page.control(name), { value: selection[name] + 1, max: payload.blocks });
}
