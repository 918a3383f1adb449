// Shows the map's faithfulness and marks the faithful heads of the grid. The comparisons with chance run in small
// slices while the viewer is idle.

import { GLOSSARY, faithfulness, faithfulTitle, signed, verdictText } from "./captions.js";
import { SIGNIFICANCE } from "./faithfulness.js";
import { placeOverCell } from "./layout.js";
import { setText } from "./page.js";

/** @import { Masks } from "./faithfulness.js" */
/** @import { Cell, Verdict } from "./types" */
/** @import { Viewer } from "./viewer.js" */

const REST = 150; // [ms] without changes before a map is judged
const BUDGET = 6; // [ms] per frame for judging
const LONGEST = 4000; // [ms] after which marking a grid stops

/** Shows the faithfulness of the maps of one viewer. */
export class FaithfulnessBox {
  /** @param {Viewer} viewer */
  constructor(viewer) {
    this.viewer = viewer;
    this.box = viewer.page.find(".faithfulness");
    this.parts = [...this.box.children];
    this.marks = viewer.page.find(".marks");
    this.value = NaN; // correlation of the map over the picture
    this.rest = this.frame = 0;
    this.markedGrid = ""; // key of the grid whose heads are marked
    /** @type {Verdict | undefined} */
    this.verdict = undefined; // shown in the box
    this.verdictMap = ""; // key of the map that the verdict belongs to
  }

  /** Cancel pending work. */
  stop() {
    clearTimeout(this.rest);
    cancelAnimationFrame(this.frame);
    this.viewer.root.removeAttribute("data-judging");
  }

  /** Show the box as soon as masks are expected, so that the layout does not shift when they arrive. */
  reserve() {
    this.box.hidden = !this.viewer.masksName;
  }

  /** Show the score of the map over the picture; the verdict follows after REST. */
  draw() {
    const { viewer } = this;
    const { masks, map } = viewer;
    this.stop();
    this.reserve();
    const fits = masks !== null && masks.patches === viewer.payload.patches;
    this.marks.hidden = !fits || !masks.decidable || this.markedGrid !== this.gridKey;
    if (this.box.hidden) return;
    if (this.box.title !== GLOSSARY.faithful) this.box.title = GLOSSARY.faithful;
    if (!fits) return this.drawBox("Faithful", "–", "not measured yet");
    const title = faithfulTitle(masks);
    if (!map.ready) return this.drawBox(title, "–", "");
    if (!masks.decidable) return this.drawBox(title, "–", "masks hardly change it");
    this.value = masks.correlation(map.values, map.at + map.payload.split);
    const known = masks.verdicts.get(this.value);
    // When more masks arrive for the same map, the earlier verdict stays until the next is computed.
    this.drawBox(title, faithfulness(this.value, masks), masks, known ?? (this.verdictMap === this.mapKey ? this.verdict : undefined));
    if (known && this.markedGrid === this.gridKey) return;
    viewer.root.toggleAttribute("data-judging", true);
    this.rest = setTimeout(() => this.start(masks), REST);
  }

  /** Key of the map over the picture. */
  get mapKey() {
    const { masksName, state } = this.viewer;
    const { view, selection, cell } = state;
    const settings = state.settings.map((name) => selection[name]);
    return [masksName, view, state.queryOf(view), cell.r, cell.c, selection.direction, ...settings].join(" ");
  }

  /** Key of the maps that the grid shows. */
  get gridKey() {
    const { engine, masks, payloadId, state } = this.viewer;
    return `${payloadId} ${engine.token} ${engine.direction} ${state.fuseBlocks} ${state.fuseHeads} ${masks?.count} ${masks?.target}`;
  }

  /**
   * Fill the box.
   *
   * @param {string} title
   * @param {string} value
   * @param {Masks | string} masks masks that the map was judged by, or why it was not judged
   * @param {Verdict} [verdict]
   */
  drawBox(title, value, masks, verdict) {
    const detail = typeof masks === "string" ? masks : verdictText(verdict, masks);
    [title, value, detail].forEach((text, i) => setText(this.parts[i], text));
    this.box.classList.toggle("true", verdict !== undefined && verdict.p <= SIGNIFICANCE);
    this.verdict = verdict;
    this.verdictMap = verdict ? this.mapKey : "";
  }

  /**
   * Start working in the following frames.
   *
   * @param {Masks} masks
   */
  start(masks) {
    const work = this.work(masks);
    const go = () => {
      const began = performance.now();
      let done = false;
      while (!done && performance.now() - began < BUDGET) done = Boolean(work.next().done);
      if (done) this.viewer.root.removeAttribute("data-judging");
      else this.frame = requestAnimationFrame(go);
    };
    this.frame = requestAnimationFrame(go);
  }

  /**
   * Judge the map over the picture, then those of the grid, best correlation first; yields after each comparison.
   *
   * @param {Masks} masks
   */
  *work(masks) {
    const { map, engine, payload } = this.viewer;
    if (!masks.verdicts.has(this.value)) {
      masks.verdicts.set(this.value, yield* masks.computeVerdict(map.values, map.at + payload.split));
      const verdict = /** @type {Verdict} */ (masks.verdicts.get(this.value));
      this.drawBox(faithfulTitle(masks), faithfulness(this.value, masks), masks, verdict);
      yield;
    }
    while (!engine.complete) yield; // `Grid` is still computing its maps
    const grid = this.gridKey, began = performance.now();
    if (this.markedGrid === grid) return;
    /** @type {(Cell & { at: number, value: number })[]} */
    const cells = [];
    for (let r = 1; r <= payload.lines; r++)
      for (let c = 1; c <= payload.heads; c++) {
        const at = engine.offset(r, c) + payload.split;
        cells.push({ r, c, at, value: masks.correlation(engine.values, at) });
        yield;
      }
    cells.sort((a, b) => b.value - a.value);
    const best = [];
    for (const cell of cells) {
      if (!(cell.value > 0) || performance.now() - began > LONGEST) break; // no better than a constant map
      if (!masks.verdicts.has(cell.value)) masks.verdicts.set(cell.value, yield* masks.computeVerdict(engine.values, cell.at));
      if (/** @type {Verdict} */ (masks.verdicts.get(cell.value)).p <= SIGNIFICANCE) best.push(cell);
    }
    if (this.gridKey !== grid) return;
    this.markedGrid = grid;
    this.show(best);
  }

  /**
   * Put a dot on maps of the grid.
   *
   * @param {(Cell & { value: number })[]} cells
   */
  show(cells) {
    const dots = cells.map((cell) => {
      const dot = document.createElement("i");
      dot.title = `Faithful: ${signed(cell.value)}, better than chance`;
      placeOverCell(dot, this.viewer.mosaic, cell);
      return dot;
    });
    this.marks.replaceChildren(...dots);
    this.marks.hidden = false;
  }
}
