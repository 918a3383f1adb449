// Updates the controls from the selection.

import { methodMeaning } from "./captions.js";
import { write } from "./page.js";
import { say } from "./words.js";

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
export function reflect(page, state) {
  const { selection } = state;
  reflectFusions(page, state);
  reflectSwitches(page, state);
  reflectMethod(page, state.method);
  const components = state.payload.features && state.readable;
  page.find("[data-value=components]").hidden = page.find(".keys .components").hidden = !components;
  page.control("colormap").value = selection.colormap;
  page.control("opacity").value = String(selection.opacity);
  page.control("smooth").checked = selection.smooth;
  page.control("contour").value = selection.contour;
  page.control("cover").value = selection.cover;
  page.find(".mass").hidden = selection.contour !== "mass";
  reflectShares(page, selection);
  reflectSettings(page, state);
}

/**
 * Update the sliders and the percentages beside them.
 *
 * @param {Page} page
 * @param {Selection} selection
 */
export function reflectShares(page, selection) {
  for (const name of SHARES) {
    const slider = page.control(name);
    slider.value = String(selection[name]);
    if (slider.nextElementSibling) write(slider.nextElementSibling, `${Math.round(100 * selection[name])} %`);
  }
}

/**
 * Update how all blocks, and all heads, are fused.
 *
 * @param {Page} page
 * @param {State} state
 */
function reflectFusions(page, state) {
  page.control("fuse_blocks").value = state.fuseBlocks;
  page.control("fuse_heads").value = state.fuseHeads;
  write(page.find(".fusion.blocks b"), say(state.fuseBlocks));
  write(page.find(".fusion.heads b"), say(state.fuseHeads));
}

/**
 * @param {Page} page
 * @param {State} state
 */
function reflectSwitches(page, state) {
  /** @type {Record<string, unknown>} */
  const chosen = { ...state.selection };
  for (const group of page.switches)
    for (const button of group.querySelectorAll("button"))
      button.setAttribute("aria-pressed", String(chosen[group.dataset.field ?? ""] === button.dataset.value));
  const ofToken = state.selection.view !== "relevance" || state.selection.pinned; // otherwise the map belongs to the class, which has no direction
  page.find("[data-field=direction]").hidden = !state.directed || !ofToken;
}

/**
 * Update the button of the view "relevance", which is hidden without a method.
 *
 * @param {Page} page
 * @param {Method | null} method
 */
function reflectMethod(page, method) {
  const button = page.find("[data-value=relevance]");
  button.hidden = page.find(".keys .relevance").hidden = !method;
  write(button, method?.title ?? "");
  button.title = method ? methodMeaning(method) : "";
}

/**
 * Show only the settings that apply to the current view.
 *
 * @param {Page} page
 * @param {State} state
 */
function reflectSettings(page, { selection, settings, payload }) {
  /** @type {NodeListOf<HTMLElement>} */
  const labels = page.root.querySelectorAll("[data-setting]");
  for (const label of labels) label.hidden = !settings.some((name) => name === label.dataset.setting);
  page.control("fusion").value = selection.fusion;
  for (const name of NUMBERS) Object.assign(page.control(name), { value: selection[name] + 1, max: payload.blocks });
}
