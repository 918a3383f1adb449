// Pointer, touch and keyboard input. Only choices are sent to Python (clicks, and keys after a pause), never hovering.

import { readValue, showValue } from "./controls.js";
import { placeMaps, placePicture } from "./layout.js";
import { listenToPresent, present } from "./present.js";

/** @import { Effect } from "./types" */
/** @import { Viewer } from "./viewer.js" */

export const SETTLE = 300; // [ms] after the last key before the selection is sent to Python

/**
 * Add all event listeners, except those of the chips, which exist only with a payload.
 *
 * @param {Viewer} viewer
 */
export function listen(viewer) {
  const { over, gridCanvas } = viewer.page;
  listenToPointer(viewer);
  over.addEventListener("keydown", (event) => pictureKey(viewer, event));
  viewer.root.addEventListener("keydown", (event) => {
    if (event.key === "Escape") viewer.apply(leave(viewer));
  });
  over.addEventListener("blur", () => viewer.apply(viewer.state.endHover()));
  listenToGrid(viewer);
  gridCanvas.addEventListener("keydown", (event) => gridKey(viewer, event));
  listenToChoices(viewer);
  listenToSliders(viewer);
  listenToDisplay(viewer);
  listenToHiding(viewer);
  listenToPresent(viewer);
}

/**
 * Return the token of the patch under the pointer, or of the nearest patch.
 *
 * @param {Viewer} viewer
 * @param {PointerEvent | MouseEvent} event
 */
function tokenAt({ page, payload }, event) {
  const { rows, cols, split } = payload;
  const area = page.over.getBoundingClientRect();
  /** @type {(at: number, start: number, size: number, count: number) => number} */
  const part = (at, start, size, count) => Math.min(Math.max(Math.floor(((at - start) / size) * count), 0), count - 1);
  return split + part(event.clientY, area.top, area.height, rows) * cols + part(event.clientX, area.left, area.width, cols);
}

/**
 * Return the grid cell under the pointer.
 *
 * @param {Viewer} viewer
 * @param {MouseEvent} event
 */
function cellAt({ page, mosaic }, event) {
  const area = page.gridCanvas.getBoundingClientRect();
  const x = ((event.clientX - area.left) / area.width) * mosaic.width;
  const y = ((event.clientY - area.top) / area.height) * mosaic.height;
  return { r: mosaic.row(y), c: mosaic.column(x) };
}

/**
 * Handle pointer and touch on the picture: hover, pin, or drag to hide patches.
 *
 * @param {Viewer} viewer
 */
function listenToPointer(viewer) {
  const { state } = viewer;
  const { over } = viewer.page;
  let tapped = -1; // token where a finger went down
  viewer.root.addEventListener("pointerdown", ({ pointerType }) => (viewer.pressedBy = pointerType), true);
  over.addEventListener("pointermove", (event) => {
    if (state.stroke !== null) return strokeOver(viewer, event);
    if (event.pointerType !== "touch" || state.touching) viewer.apply(state.hoverToken(tokenAt(viewer, event)), event);
  });
  over.addEventListener("pointerleave", () => !state.touching && viewer.apply(state.endHover()));
  over.addEventListener("pointerdown", (event) => {
    if (viewer.page.painting && event.button === 0) return beginStroke(viewer, event);
    if (event.pointerType !== "touch") return;
    state.touching = true;
    tapped = tokenAt(viewer, event);
    viewer.apply(state.hoverToken(tapped), event);
  });
  over.addEventListener("pointerup", (event) => {
    if (state.stroke !== null) return endStroke(viewer);
    if (!state.touching) return;
    state.touching = false;
    state.hovered = -1;
    const token = tokenAt(viewer, event);
    viewer.apply(token === tapped ? state.togglePin(token) : state.pin(token));
  });
  over.addEventListener("pointercancel", () => {
    if (state.stroke !== null) return endStroke(viewer);
    state.touching = false;
    viewer.apply(state.endHover());
  });
  over.addEventListener("click", (event) => {
    // A finger pins on "pointerup".
    if (!viewer.page.painting && pointerOf(viewer, event) !== "touch") click(viewer, tokenAt(viewer, event), event);
  });
}

/** @type {(viewer: Viewer, event: MouseEvent & { pointerType?: string }) => string} kind of pointer that clicked, "" for a key; older browsers, such as Safari 18.2, say it only when it is pressed */
const pointerOf = (viewer, event) => event.pointerType ?? (event.detail ? viewer.pressedBy : "");

/**
 * Toggle the pin of a clicked token. An unpinned token stays hovered, since the pointer is still on it.
 *
 * @param {Viewer} viewer
 * @param {number} token
 * @param {MouseEvent} event
 */
function click(viewer, token, event) {
  const { state } = viewer;
  const effect = state.togglePin(token);
  if (!state.selection.pinned && ["mouse", "pen"].includes(pointerOf(viewer, event))) state.hovered = token;
  viewer.apply(effect);
}

/**
 * @param {Viewer} viewer
 * @param {PointerEvent} event
 */
function beginStroke(viewer, event) {
  event.preventDefault();
  viewer.page.over.setPointerCapture(event.pointerId);
  viewer.state.beginStroke(tokenAt(viewer, event) - viewer.payload.split);
  strokeOver(viewer, event);
}

/**
 * @param {Viewer} viewer
 * @param {PointerEvent} event
 */
function strokeOver(viewer, event) {
  const { state, picture, payload } = viewer;
  if (state.strokeOver(tokenAt(viewer, event) - payload.split)) picture.drawHidden(state.selection.hidden);
}

/** @param {Viewer} viewer */
function endStroke(viewer) {
  viewer.state.stroke = null;
  viewer.change({});
}

/** @param {Viewer} viewer */
function listenToGrid(viewer) {
  const { state } = viewer;
  const { gridCanvas } = viewer.page;
  gridCanvas.addEventListener("pointermove", (event) => {
    if (event.pointerType !== "touch") viewer.apply(state.hoverCell(cellAt(viewer, event)), event);
  });
  gridCanvas.addEventListener("pointerleave", () => viewer.apply(state.hoverCell(null)));
  gridCanvas.addEventListener("click", (event) => viewer.apply(state.selectCell(cellAt(viewer, event))));
}

/**
 * Add listeners to the chips of a payload.
 *
 * @param {Viewer} viewer
 */
export function listenToChips(viewer) {
  const { state } = viewer;
  viewer.chips.every.forEach(({ chip }, token) => {
    chip.addEventListener("pointerenter", (event) => {
      if (event.pointerType !== "touch") viewer.apply(state.hoverToken(token));
    });
    chip.addEventListener("pointerleave", () => viewer.apply(state.endHover()));
    chip.addEventListener("click", (event) => click(viewer, token, event));
  });
}

/**
 * Apply changes of buttons, selects and checkboxes.
 *
 * @param {Viewer} viewer
 */
function listenToChoices(viewer) {
  const { page, state } = viewer;
  /** @type {(element: HTMLElement, read: (control: HTMLInputElement) => any) => void} */
  const choose = (element, read) =>
    element.addEventListener("change", () => viewer.change(read(/** @type {HTMLInputElement} */ (element))));
  choose(page.control("fuse_blocks"), ({ value }) => ({ block: value, view: "attention" }));
  choose(page.control("fuse_heads"), ({ value }) => {
    return { head: value, view: state.selection.view === "pool" ? "pool" : "attention" };
  });
  for (const control of page.settings)
    choose(control, () => ({ [control.dataset.field ?? ""]: readValue(control, viewer.payload.blocks) }));
  for (const group of page.switches)
    group.addEventListener("click", (event) => {
      const value = /** @type {Element} */ (event.target).closest("button")?.dataset.value;
      if (value) viewer.change({ [group.dataset.field ?? ""]: value });
    });
  page.control("lines").addEventListener("change", () => {
    page.find(".lines").hidden = !page.control("lines").checked;
  });
  page.control("whole").addEventListener("change", () => {
    placePicture(page, viewer.payload);
    placeMaps(page, viewer.payload, viewer.mosaic);
  });
}

/**
 * Preview slider values while they move; `listenToChoices` applies them on release.
 *
 * @param {Viewer} viewer
 */
function listenToSliders(viewer) {
  const { page, state } = viewer;
  for (const slider of page.settings.filter(({ type }) => type === "range"))
    slider.addEventListener("input", () => {
      Object.assign(state.selection, { [slider.dataset.field ?? ""]: Number(slider.value) });
      showValue(slider, state.selection, viewer.payload.blocks);
      viewer.apply("pointed");
    });
}

/**
 * Close the panel of display settings on Escape and when it loses focus, so that it does not cover the picture.
 *
 * @param {Viewer} viewer
 */
function listenToDisplay({ page }) {
  const display = /** @type {HTMLDetailsElement} */ (page.find(".display"));
  display.addEventListener("focusout", ({ relatedTarget }) => {
    if (!display.contains(/** @type {Node | null} */ (relatedTarget))) display.open = false;
  });
  display.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !display.open) return;
    event.stopPropagation();
    page.find(".display summary").focus();
    display.open = false;
  });
}

/** @param {Viewer} viewer */
function listenToHiding(viewer) {
  const { page, state } = viewer;
  page.control("paint").addEventListener("change", () => page.over.classList.toggle("painted", page.painting));
  page.find(".unhide").addEventListener("click", () => viewer.change({ hidden: [] }));
  page.find(".swap").addEventListener("click", () => viewer.apply(state.swapHidden()));
}

/** @param {KeyboardEvent} event */
function modified(event) {
  return event.ctrlKey || event.metaKey || event.altKey;
}

/**
 * Handle a key on the picture.
 *
 * @param {Viewer} viewer
 * @param {KeyboardEvent} event
 */
function pictureKey(viewer, event) {
  if (modified(event)) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const act = SETTLING[key] ?? CHOOSING[key];
  if (!act) return;
  event.preventDefault();
  event.stopPropagation(); // Streamlit has shortcuts on C and R
  viewer.apply(act(viewer), undefined, key in SETTLING ? SETTLE : 0);
  if (key in SETTLING) viewer.announce();
}

/** @typedef {(viewer: Viewer) => Effect} Act */

/** @type {(down: number, right: number) => Act} */
const moving = (down, right) => ({ page, state }) => state.move(down, right, page.painting);

/** @type {(down: number, right: number) => Act} */
const stepping = (down, right) => ({ state }) => {
  const { r, c } = state.selectedCell;
  return state.selectCell({ r: r + down, c: c + right });
};

/** @type {Act} */
const togglePin = ({ page, state }) => (page.painting ? state.toggleHidden() : state.selection.pinned ? state.release() : state.pin(state.query));

/** @type {Record<string, Act>} Keys that are pressed repeatedly; only the last result is sent, after SETTLE. */
const SETTLING = {
  ArrowLeft: moving(0, -1),
  ArrowRight: moving(0, 1),
  ArrowUp: moving(-1, 0),
  ArrowDown: moving(1, 0),
  PageUp: stepping(-1, 0),
  PageDown: stepping(1, 0),
  Home: stepping(0, -1),
  End: stepping(0, 1),
  "[": stepping(0, -1),
  "]": stepping(0, 1),
};

/** @type {Act} A pin is released first; without one, the presentation ends. */
const leave = (viewer) => (viewer.state.selection.pinned || !present(viewer, false) ? viewer.state.release() : "");

/** @type {Record<string, Act>} */
const CHOOSING = {
  Enter: togglePin,
  " ": togglePin,
  Escape: leave,
  c: ({ state }) => state.selectClassToken(),
  d: ({ state }) => (state.hasDirection ? state.change({ direction: state.selection.direction === "to" ? "from" : "to" }) : ""),
  r: ({ state }) => state.toggleView("rollout"),
  m: ({ state }) => (state.method ? state.toggleView("relevance") : ""),
  n: ({ state, payload }) => (payload.features ? state.toggleView("similar") : ""),
  f: ({ state, payload }) => (payload.features && state.canRequestFeatures ? state.toggleView("components") : ""),
  p: ({ state, payload }) => (payload.pool ? state.toggleView("pool") : ""),
  s: ({ state }) => state.change({ scale: state.selection.scale === "own" ? "shared" : "own" }),
  v: ({ page }) => (page.find(".present").click(), ""), // disabled in the lesson
};

/**
 * Handle a key on the grid: arrows move between maps.
 *
 * @param {Viewer} viewer
 * @param {KeyboardEvent} event
 */
function gridKey(viewer, event) {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!step || modified(event)) return;
  event.preventDefault();
  event.stopPropagation();
  viewer.apply(stepping(step[0], step[1])(viewer), undefined, SETTLE);
}
