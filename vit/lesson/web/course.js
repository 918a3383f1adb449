// The steps of the lesson: what the viewer shows in each, and which action completes it. No DOM access.

/** @import { Selection, View } from "../../view/web/types" */

/**
 * A user action.
 *
 * @typedef {{ kind: "lines" | "class token" | "picture" | "number" | "hidden" } | { kind: "chosen", selection: Selection }} Act
 */

/**
 * One step. Its texts are `NAME.title`, `NAME.text` and `NAME.task`.
 *
 * @typedef {object} Step
 * @property {string} name
 * @property {number} block block that the viewer shows; -1 is the last one
 * @property {number} [head] head that the viewer shows; the mean of all by default
 * @property {string} where selector of the element that the task uses
 * @property {string} [from] selector of the element to scroll to, `where` by default
 * @property {View} [view] attention by default
 * @property {boolean} [patch] the query is the middle patch instead of the class token
 * @property {boolean} [open] the query is not pinned, so that hovering changes it
 * @property {(act: Act, shown: Shown) => boolean} done whether an action completes the step
 */

/** @typedef {{ block: number, head: number | "mean" }} Shown */

/** @type {(act: Act, field: "block" | "head", shown: Shown) => boolean} whether a single other block or head was selected */
const choseOther = (act, field, shown) => {
  const chosen = act.kind === "chosen" ? act.selection[field] : "";
  return typeof chosen === "number" && chosen !== shown[field];
};

/** @type {Step[]} */
export const STEPS = [
  { name: "patches", where: "label:has([data-field=lines])", block: -1, view: "rollout", done: ({ kind }) => kind === "lines" },
  { name: "tokens", where: ".tokens button", block: -1, patch: true, open: true, done: ({ kind }) => kind === "class token" },
  {
    name: "looks", where: "[data-value=to]", block: 1, head: 0, patch: true,
    done: (act) => act.kind === "chosen" && act.selection.direction === "to",
  },
  {
    name: "heads", where: ".mosaic", block: 1, head: 0, patch: true,
    done: (act, shown) => choseOther(act, "head", shown),
  },
  {
    name: "blocks", where: ".mosaic", block: 0, patch: true,
    done: (act, shown) => choseOther(act, "block", shown),
  },
  {
    name: "rollout", where: "[data-value=rollout]", block: -1,
    done: (act) => act.kind === "chosen" && act.selection.view === "rollout",
  },
  {
    name: "numbers", where: ".keys-list", from: ".numbers", block: 1, head: 0, patch: true,
    done: ({ kind }) => kind === "number",
  },
  { name: "own", where: ".pictures", block: -1, done: ({ kind }) => kind === "picture" },
  { name: "believe", where: ".trials", block: -1, view: "rollout", done: ({ kind }) => kind === "hidden" },
];

/** The user's progress in the lesson. */
export class Course {
  /** @param {number} depth number of blocks of the model */
  constructor(depth) {
    this.depth = depth;
    this.number = 0;
    this.furthest = 0; // controls that were explained stay visible
    /** @type {Set<number>} */
    this.done = new Set();
  }

  get step() {
    return STEPS[this.number];
  }

  /**
   * Return the selection that the viewer shows for the step.
   *
   * @param {number} middle token of the middle patch
   */
  initialSelection(middle) {
    const { block, head = "mean", view = "attention", patch = false, open = false } = this.step;
    /** @type {Pick<Selection, "view" | "direction"> & Pick<Shown, "head">} */
    const common = { view, direction: "from", head };
    const last = this.depth - 1;
    return { ...common, block: block < 0 ? last : Math.min(block, last), token: patch ? middle : 0, pinned: patch && !open, hidden: [] };
  }

  /**
   * Whether a step was reached.
   *
   * @param {string} name
   */
  hasExplained(name) {
    return STEPS.findIndex((step) => step.name === name) <= this.furthest;
  }

  /** @param {number} number number of a step */
  go(number) {
    this.number = Math.min(Math.max(number, 0), STEPS.length - 1);
    this.furthest = Math.max(this.furthest, this.number);
  }

  /**
   * Record an action; returns whether it completes the step for the first time.
   *
   * @param {Act} act
   */
  record(act) {
    if (this.done.has(this.number) || !this.step.done(act, this.initialSelection(0))) return false;
    this.done.add(this.number);
    return true;
  }
}
