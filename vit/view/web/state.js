// The state of one viewer (selection, pin, hover, hidden patches) and its transitions. No DOM access.
//
// Transitions return their effect: "pointed" requires a repaint, "chosen" also changes the selection sent to Python.

import { counterpart, fit, isFusion, neighbour, comparesFeatures } from "./selection.js";

/** @import { PayloadLayout } from "./payload.js" */
/** @import { Cell, Effect, Fusion, Method, Selection, Setting, View } from "./types" */

/** @type {Setting[]} */
const ROLLOUT_SETTINGS = ["residual", "fusion", "discard"]; // settings of rollout
/** @type {Setting[]} */
const FEATURE_SETTINGS = ["after_block"]; // settings of the feature views

/** The state of one viewer. Set a payload before using it. */
export class State {
  constructor() {
    /** @type {PayloadLayout} */
    this.payload = /** @type {any} */ (null);
    /** @type {Selection} */
    this.selection = /** @type {any} */ (null);
    /** @type {Method | null} */
    this.method = null; // method of the view "relevance"
    this.canRequestFeatures = false; // features after any block, and their components, are available on request
    this.defaultToken = 0; // query if none is pinned
    this.hovered = -1; // token under the pointer, or moved to by keys
    this.readKey = -1; // key token whose weight is read
    /** @type {Cell | null} */
    this.preview = null; // grid cell under the pointer
    this.touching = false;
    /** @type {boolean | null} */
    this.stroke = null; // during a drag: whether it hides (true) or restores (false) patches
    /** @type {Fusion} */
    this.fuseBlocks = "mean";
    /** @type {Fusion} */
    this.fuseHeads = "mean";
  }

  /**
   * Start from a selection.
   *
   * @param {Selection} selection
   */
  setSelection(selection) {
    this.selection = { ...selection };
    this.defaultToken = selection.pinned ? 0 : selection.token;
    this.hovered = this.readKey = -1;
  }

  /**
   * Switch to another payload.
   *
   * @param {PayloadLayout} payload
   */
  setPayload(payload) {
    this.payload = payload;
    this.hovered = this.readKey = -1;
    this.preview = null;
  }

  /** Fit the selection to the payload. */
  fitSelection() {
    fit(this.selection, this.payload, this.method, this.canRequestFeatures);
    if (this.defaultToken >= this.payload.tokens) this.defaultToken = 0;
  }

  /** Remember the last fusions, for the first row and column of the grid. */
  rememberFusions() {
    const { block, head } = this.selection;
    if (isFusion(block)) this.fuseBlocks = block;
    if (isFusion(head)) this.fuseHeads = head;
  }

  // ---- derived state ----------------------------------------------------------------------------------------

  /**
   * Whether hovering leaves the query unchanged: the pooling query is not a token, and maps that Python computes need a
   * round trip.
   */
  get queryFixed() {
    const { view } = this.selection;
    return view === "pool" || (view === "rollout" && !this.payload.quick) || (view === "relevance" && !this.method?.chain);
  }

  /** Whether the view has a direction, that is, rows and columns. */
  get hasDirection() {
    const { view } = this.selection;
    return view === "attention" || view === "rollout" || (view === "relevance" && Boolean(this.method?.tokens));
  }

  /** View to switch to when a token is selected, since some views have no map of a token. */
  get tokenView() {
    const { view } = this.selection;
    return view === "pool" || (view === "relevance" && !this.method?.tokens) ? "attention" : view;
  }

  /**
   * Whether the map's weights sum to 100%, which the attention that a token receives need not.
   *
   * @param {View} view
   */
  sumsToOne(view) {
    const { direction } = this.selection;
    return direction === "from" || view === "pool" || (view === "relevance" && Boolean(this.method?.target));
  }

  /** Settings that apply to the current view. */
  get settings() {
    const { view } = this.selection;
    if (comparesFeatures(view)) return this.canRequestFeatures ? FEATURE_SETTINGS : [];
    return view === "rollout" ? ROLLOUT_SETTINGS : view === "relevance" ? (this.method?.settings ?? []) : [];
  }

  /** The current query token. */
  get query() {
    const { selection, hovered } = this;
    if (hovered >= 0 && !this.queryFixed && (this.touching || !selection.pinned)) return hovered;
    return selection.token;
  }

  /** View of the map over the picture. A previewed grid cell takes precedence over the selection. */
  get view() {
    if (this.cell.r > this.payload.blocks) return "pool";
    return this.preview ? "attention" : this.selection.view;
  }

  /**
   * Return the token that a map belongs to; -1 for the pooling query or a class as a whole.
   *
   * @param {View} view
   */
  queryOf(view) {
    if (view === "pool") return -1;
    const { hovered, selection } = this;
    const ofToken = this.method?.tokens && (selection.pinned || (hovered >= 0 && !this.queryFixed));
    return view !== "relevance" || ofToken ? this.query : -1;
  }

  /** The previewed grid cell, else the selected one. */
  get cell() {
    return this.preview ?? this.selectedCell;
  }

  /** The selected grid cell; row and column 0 are the summaries. */
  get selectedCell() {
    const { view, block, head } = this.selection;
    const row = isFusion(block) ? 0 : block + 1;
    return { r: view === "pool" ? this.payload.lines : row, c: isFusion(head) ? 0 : head + 1 };
  }

  /** @param {number} r a row of the grid */
  blockOf(r) {
    return r === 0 ? this.fuseBlocks : r - 1;
  }

  /** @param {number} c a column of the grid */
  headOf(c) {
    return c === 0 ? this.fuseHeads : c - 1;
  }

  // ---- user actions -----------------------------------------------------------------------------------------

  /**
   * Change fields of the selection.
   *
   * @param {Partial<Selection>} values
   * @returns {Effect}
   */
  change(values) {
    Object.assign(this.selection, values);
    return "chosen";
  }

  /**
   * Hover over a token: it becomes the query or, if the query is fixed, the key that is read.
   *
   * @param {number} token
   * @returns {Effect}
   */
  hoverToken(token) {
    const field = !this.touching && (this.selection.pinned || this.queryFixed) ? "readKey" : "hovered";
    if (this[field] === token) return "";
    this[field] = token;
    return "pointed";
  }

  /**
   * Hover over a grid cell; null for none.
   *
   * @param {Cell | null} cell
   * @returns {Effect}
   */
  hoverCell(cell) {
    if (cell && this.preview?.r === cell.r && this.preview?.c === cell.c) return "";
    this.preview = cell;
    return "pointed";
  }

  /**
   * Stop hovering over a token.
   *
   * @returns {Effect}
   */
  endHover() {
    if (this.hovered < 0 && this.readKey < 0) return "";
    this.hovered = this.readKey = -1;
    return "pointed";
  }

  /** @param {number} token */
  pin(token) {
    this.readKey = -1;
    return this.change({ token, pinned: true, view: this.tokenView });
  }

  /**
   * Unpin the token, or leave the pooling query.
   *
   * @returns {Effect}
   */
  release() {
    const { pinned, view } = this.selection;
    if (view === "pool") return this.change({ view: "attention" });
    if (!pinned && this.hovered < 0) return "";
    this.hovered = this.readKey = -1;
    return pinned ? this.change({ token: this.defaultToken, pinned: false }) : "pointed";
  }

  /**
   * Pin a token, or unpin it if it is pinned.
   *
   * @param {number} token
   */
  togglePin(token) {
    const { pinned, view, token: pinnedToken } = this.selection;
    return !pinned || pinnedToken !== token || view === "pool" ? this.pin(token) : this.release();
  }

  /** Make the class token the query, or the first token if there is none. */
  selectClassToken() {
    this.hovered = -1;
    this.defaultToken = Math.max(0, this.payload.prefix.indexOf("cls"));
    return this.change({ token: this.defaultToken, pinned: false, view: this.tokenView });
  }

  /**
   * Switch to a view, or back to attention.
   *
   * @param {View} view
   */
  toggleView(view) {
    return this.change({ view: this.selection.view === view ? "attention" : view });
  }

  /**
   * Select a grid cell, if it exists.
   *
   * @param {Cell} cell
   * @returns {Effect}
   */
  selectCell({ r, c }) {
    const { lines, blocks, heads } = this.payload;
    if (r < 0 || c < 0 || r > lines || c > heads) return "";
    const head = this.headOf(c);
    return this.change(r > blocks ? { head, view: "pool" } : { head, block: this.blockOf(r), view: "attention" });
  }

  /**
   * Move the query by a number of patches, or only the patch that is read.
   *
   * @param {number} down
   * @param {number} right
   * @param {boolean} [reading]
   * @returns {Effect}
   */
  move(down, right, reading = false) {
    if (reading) this.readKey = neighbour(this.readKey, this.payload, down, right);
    if (reading) return "pointed";
    const token = neighbour(this.query, this.payload, down, right);
    if (this.selection.pinned || this.queryFixed) return this.change({ token, pinned: true, view: this.tokenView });
    this.hovered = token;
    return "pointed";
  }

  // ---- patches hidden from the model ------------------------------------------------------------------------

  /** @param {number} patch */
  beginStroke(patch) {
    this.stroke = !this.selection.hidden.includes(patch);
  }

  /**
   * Apply the drag to a patch; returns whether anything changed.
   *
   * @param {number} patch
   */
  strokeOver(patch) {
    const { hidden } = this.selection;
    if (hidden.includes(patch) === this.stroke) return false;
    const others = hidden.filter((other) => other !== patch);
    this.selection.hidden = (this.stroke ? [...others, patch] : others).sort((a, b) => a - b);
    return true;
  }

  /** Hide the patch that is read, or show it again. */
  toggleHidden() {
    const [patch, hidden] = [this.readKey - this.payload.split, new Set(this.selection.hidden)];
    if (patch < 0) return "";
    if (!hidden.delete(patch)) hidden.add(patch);
    return this.change({ hidden: [...hidden].sort((a, b) => a - b) });
  }

  /** Swap hidden and visible patches. */
  swapHidden() {
    const hidden = new Set(this.selection.hidden);
    return this.change({ hidden: [...Array(this.payload.patches).keys()].filter((patch) => !hidden.has(patch)) });
  }

  // ---- linked viewers ---------------------------------------------------------------------------------------

  /**
   * Copy hover and selection of another viewer; returns whether the selection changed.
   *
   * @param {State} leader
   * @param {boolean} ownView keep this viewer's view
   */
  follow(leader, ownView) {
    /** @type {(token: number) => number} */
    const at = (token) => counterpart(token, leader.payload, this.payload);
    const { lines, heads } = this.payload;
    const { preview } = leader;
    const { view, hidden } = this.selection;
    this.hovered = at(leader.hovered);
    this.readKey = at(leader.readKey);
    this.touching = leader.touching;
    this.preview = preview && preview.r <= lines && preview.c <= heads ? { ...preview } : null;
    const selection = { ...leader.selection, token: at(leader.selection.token), hidden, ...(ownView && { view }) };
    if (JSON.stringify(selection) === JSON.stringify(this.selection)) return false;
    this.selection = selection;
    return true;
  }
}
