// What is selected, pinned, pointed at and hidden in one viewer, and what people's acts make of it. No DOM here.
//
// Acts return what came of them: "pointed" is something to paint, "chosen" a choice that Python hears of too.

import { counterpart, fit, isFusion, neighbour, ofFeatures } from "./selection.js";

/** @import { Outline } from "./payload.js" */
/** @import { Cell, Effect, Fusion, Method, Selection, Setting, View } from "./types" */

/** @type {Setting[]} */
const ROLLOUT = ["residual", "fusion", "discard"]; // settings that rollout knows
/** @type {Setting[]} */
const OF_FEATURES = ["after_block"]; // settings of views that compare features

/** The state of one viewer; it has a payload before anything is asked of it. */
export class State {
  constructor() {
    /** @type {Outline} */
    this.payload = /** @type {any} */ (null);
    /** @type {Selection} */
    this.selection = /** @type {any} */ (null);
    /** @type {Method | null} */
    this.method = null; // what the view "relevance" shows
    this.readable = false; // features after any block, and their components, can be had
    this.home = 0; // the token that is asked about where none is pinned
    this.hovered = -1; // token under the pointer or moved to by keys
    this.readKey = -1; // token whose weight is read
    /** @type {Cell | null} */
    this.preview = null; // the map under the pointer
    this.touching = false;
    /** @type {boolean | null} */
    this.stroke = null; // while patches are hidden (true) or shown again (false) by dragging
    /** @type {Fusion} */
    this.fuseBlocks = "mean";
    /** @type {Fusion} */
    this.fuseHeads = "mean";
  }

  /**
   * Begin with a selection.
   *
   * @param {Selection} selection
   */
  begin(selection) {
    this.selection = { ...selection };
    this.home = selection.pinned ? 0 : selection.token;
    this.hovered = this.readKey = -1;
  }

  /**
   * Turn to another picture or model.
   *
   * @param {Outline} payload
   */
  turnTo(payload) {
    this.payload = payload;
    this.hovered = this.readKey = -1;
    this.preview = null;
  }

  /** Bring everything into what the payload has. */
  settle() {
    fit(this.selection, this.payload, this.method, this.readable);
    if (this.home >= this.payload.tokens) this.home = 0;
  }

  /** Remember how blocks and heads were last fused, for the first row and column of the grid. */
  keepFusions() {
    const { block, head } = this.selection;
    if (isFusion(block)) this.fuseBlocks = block;
    if (isFusion(head)) this.fuseHeads = head;
  }

  // ---- what is shown ----------------------------------------------------------------------------------------

  /**
   * The query stays, wherever the pointer is: the pooling query is no token, and rollout of a large model comes from
   * Python.
   */
  get fixed() {
    const { view } = this.selection;
    return view === "pool" || (view === "rollout" && !this.payload.quick) || (view === "relevance" && !this.method?.chain);
  }

  /** The view reads rows or columns; the others know no direction. */
  get directed() {
    const { view } = this.selection;
    return view === "attention" || view === "rollout" || (view === "relevance" && Boolean(this.method?.tokens));
  }

  /** The view to show when a token is asked about: the pooling query then gives way. */
  get viewOfTokens() {
    const { view } = this.selection;
    return view === "pool" || (view === "relevance" && !this.method?.tokens) ? "attention" : view;
  }

  /**
   * The map shares out 100 %, or every row of what it is a row of does; what a token receives need not.
   *
   * @param {View} view
   */
  isWhole(view) {
    const { direction } = this.selection;
    return direction === "from" || view === "pool" || (view === "relevance" && Boolean(this.method?.target));
  }

  /** Settings that mean something to what is shown. */
  get settings() {
    const { view } = this.selection;
    if (ofFeatures(view)) return this.readable ? OF_FEATURES : [];
    return view === "rollout" ? ROLLOUT : view === "relevance" ? (this.method?.settings ?? []) : [];
  }

  /** The token that is asked about. */
  get query() {
    const { selection, hovered } = this;
    if (hovered >= 0 && !this.fixed && (this.touching || !selection.pinned)) return hovered;
    return selection.token;
  }

  /** The view of the large map; a map of the grid that is pointed at comes before the selection. */
  get view() {
    if (this.cell.r > this.payload.blocks) return "pool";
    return this.preview ? "attention" : this.selection.view;
  }

  /**
   * The token that a map is about; -1 where it is about none: the pooling query's, or a class's.
   *
   * @param {View} view
   */
  queryOf(view) {
    if (view === "pool") return -1;
    const { hovered, selection } = this;
    const ofToken = this.method?.tokens && (selection.pinned || (hovered >= 0 && !this.fixed));
    return view !== "relevance" || ofToken ? this.query : -1;
  }

  /** The map of the grid that is previewed or selected. */
  get cell() {
    return this.preview ?? this.selectedCell;
  }

  /** The map of the grid that is selected; row and column 0 are those that fuse. */
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

  // ---- what people do ---------------------------------------------------------------------------------------

  /**
   * Choose these values.
   *
   * @param {Partial<Selection>} values
   * @returns {Effect}
   */
  change(values) {
    Object.assign(this.selection, values);
    return "chosen";
  }

  /**
   * The pointer is on a token: it becomes the query or, when the query is held, the key that is read.
   *
   * @param {number} token
   * @returns {Effect}
   */
  point(token) {
    const field = !this.touching && (this.selection.pinned || this.fixed) ? "readKey" : "hovered";
    if (this[field] === token) return "";
    this[field] = token;
    return "pointed";
  }

  /**
   * The pointer is on a map of the grid, or on none.
   *
   * @param {Cell | null} cell
   * @returns {Effect}
   */
  look(cell) {
    if (cell && this.preview?.r === cell.r && this.preview?.c === cell.c) return "";
    this.preview = cell;
    return "pointed";
  }

  /**
   * The pointer is on no token.
   *
   * @returns {Effect}
   */
  leave() {
    if (this.hovered < 0 && this.readKey < 0) return "";
    this.hovered = this.readKey = -1;
    return "pointed";
  }

  /** @param {number} token */
  pin(token) {
    this.readKey = -1;
    return this.change({ token, pinned: true, view: this.viewOfTokens });
  }

  /**
   * Let go of a pinned token, or of the pooling query.
   *
   * @returns {Effect}
   */
  release() {
    const { pinned, view } = this.selection;
    if (view === "pool") return this.change({ view: "attention" });
    if (!pinned && this.hovered < 0) return "";
    this.hovered = this.readKey = -1;
    return pinned ? this.change({ token: this.home, pinned: false }) : "pointed";
  }

  /**
   * A click, a tap or Enter on a token.
   *
   * @param {number} token
   */
  togglePin(token) {
    const { pinned, view, token: held } = this.selection;
    return !pinned || held !== token || view === "pool" ? this.pin(token) : this.release();
  }

  /** Ask about the class token, or the first one. */
  askClassToken() {
    this.hovered = -1;
    this.home = Math.max(0, this.payload.prefix.indexOf("cls"));
    return this.change({ token: this.home, pinned: false, view: this.viewOfTokens });
  }

  /**
   * To a view, or back to attention.
   *
   * @param {View} view
   */
  turn(view) {
    return this.change({ view: this.selection.view === view ? "attention" : view });
  }

  /**
   * Choose a map of the grid, if there is one.
   *
   * @param {Cell} cell
   * @returns {Effect}
   */
  choose({ r, c }) {
    const { lines, blocks, heads } = this.payload;
    if (r < 0 || c < 0 || r > lines || c > heads) return "";
    const head = this.headOf(c);
    return this.change(r > blocks ? { head, view: "pool" } : { head, block: this.blockOf(r), view: "attention" });
  }

  /**
   * Move the query by patches.
   *
   * @param {number} down
   * @param {number} right
   * @returns {Effect}
   */
  move(down, right) {
    const token = neighbour(this.query, this.payload, down, right);
    if (this.selection.pinned || this.fixed) return this.change({ token, pinned: true, view: this.viewOfTokens });
    this.hovered = token;
    return "pointed";
  }

  // ---- patches hidden from the model ------------------------------------------------------------------------

  /** @param {number} patch */
  beginStroke(patch) {
    this.stroke = !this.selection.hidden.includes(patch);
  }

  /**
   * The stroke passes a patch; true if that changes anything.
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

  /** Hide what is shown, and show what is hidden. */
  swapHidden() {
    const hidden = new Set(this.selection.hidden);
    return this.change({ hidden: [...Array(this.payload.patches).keys()].filter((patch) => !hidden.has(patch)) });
  }

  // ---- viewers that move together ---------------------------------------------------------------------------

  /**
   * What was pointed at or chosen in another viewer happens here too; true if the selection is another one then.
   *
   * @param {State} leader
   * @param {boolean} ownView its own view stays
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
