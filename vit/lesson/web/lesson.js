// Entry point of the lesson's page, which `vit.lesson.page` writes.

import { openPayload } from "../../view/web/bytes.js";
import { percent } from "../../view/web/captions.js";
import { storePayload } from "../../view/web/payload_registry.js";
import { mount } from "../../view/web/viewer.js";
import { Answer } from "./answer.js";
import { Card } from "./card.js";
import { Course } from "./course.js";
import { decodePicture } from "./decode.js";
import { element } from "./elements.js";
import { Experiment, patchesToHide } from "./experiment.js";
import { Numbers } from "./numbers.js";
import { Pictures } from "./pictures.js";
import { decodeText } from "./text.js";
import { Thread } from "./thread.js";
import { translate, setTranslations } from "../../view/web/words.js";

/** @import { LessonHeader } from "./types" */
/** @import { Selection } from "../../view/web/types" */
/** @import { Viewer } from "../../view/web/viewer.js" */
/** @import { Act } from "./course.js" */

/** @type {Pick<Selection, "colormap" | "opacity" | "cover" | "smooth" | "scale" | "contour" | "mass" | "residual" | "fusion" | "discard" | "start_block" | "after_block">} fields of the selection that no step changes */
const DEFAULTS = {
  colormap: "", opacity: 0.6, cover: "weight", smooth: false, scale: "shared", contour: "none", mass: 0.6,
  residual: 0.5, fusion: "mean", discard: 0, start_block: 0, after_block: -1,
};

const { words } = JSON.parse(element("#data").textContent ?? "");
setTranslations(words);

/** The lesson: model, current picture and progress. */
class Lesson {
  constructor() {
    const bytes = decodeText(element("#model").textContent ?? "");
    const { header, section } = openPayload(bytes);
    this.header = /** @type {LessonHeader} */ (/** @type {unknown} */ (header));
    this.main = element("main");
    this.thread = new Thread(element("#worker").textContent ?? "");
    for (const id of ["#model", "#worker"]) element(id).remove();
    const samples = this.header.samples.map((sample) => ({
      ...sample,
      file: new Blob([section(`sample:${sample.name}`, Uint8Array).slice()], { type: "image/jpeg" }),
    }));
    this.thread.request("load", bytes, [bytes.buffer]);

    const { config } = this.header;
    this.course = new Course(config.depth);
    const rows = config.image_size[0] / config.patch_size, cols = config.image_size[1] / config.patch_size;
    this.middle = config.prefix.length + (rows >> 1) * cols + (cols >> 1);
    this.revision = this.count = 0; // number of the selection, number of the picture
    this.selection = this.initialSelection;
    this.answer = new Answer(this.header.labels);
    const { labels, name } = this.header;
    const facts = {
      name, rows, cols, width: config.image_size[1], height: config.image_size[0], dim: config.dim, depth: config.depth,
      heads: config.heads, classes: labels.length, labels: labels.join(", "), tokens: rows * cols + config.prefix.length,
    };
    const { accuracy } = this.header;
    const right = typeof accuracy === "number" ? ` ${translate("facts right", { share: percent(accuracy) })}` : "";
    this.facts = translate("facts", facts) + right;
    element(".facts").textContent = this.facts;
    this.card = new Card(this.course, facts, () => this.show());
    this.pictures = new Pictures(samples, (file) => this.openPicture(file));
    this.numbers = new Numbers((token) => this.compare(token));
    this.experiment = new Experiment(rows * cols, (strongest) => this.hide(strongest), () => this.hidePatches([]));
    this.other = -1; // key token that the user chose, -1 for the strongest
    this.traceKey = ""; // key of the last requested trace
    this.tracing = false;
    this.listen();
    this.pictures.choose(0);
  }

  /** The step's initial selection. @returns {Selection} */
  get initialSelection() {
    return { ...DEFAULTS, ...this.course.initialSelection(this.middle) };
  }

  /** Listen for the actions that steps ask for. */
  listen() {
    const { main } = this;
    main.addEventListener("change", ({ target }) => {
      if (/** @type {Element} */ (target).matches("[data-field=lines]")) this.recordAction({ kind: "lines" });
    });
    for (const kind of ["pointerover", "click", "focusin"])
      main.addEventListener(kind, ({ target }) => {
        if (/** @type {Element} */ (target).closest(".tokens button")) this.recordAction({ kind: "class token" });
      });
    // The viewer handles these events in the next frame; update the numbers after that.
    for (const kind of ["pointermove", "click", "keyup"]) main.addEventListener(kind, () => requestAnimationFrame(() => this.updateTrace()));
  }

  /** @returns {Viewer | undefined} the viewer, once it is mounted */
  get viewer() {
    return element(".vit").__vitViewer;
  }

  /** @param {Act} act */
  recordAction(act) {
    if (this.course.record(act)) this.card.draw();
  }

  /**
   * Classify a picture and show the result.
   *
   * @param {Blob} file
   */
  async openPicture(file) {
    const number = ++this.count;
    this.main.dataset.state = "looking";
    try {
      const picture = await decodePicture(file);
      if (number !== this.count) return; // superseded: the thread gets the latest picture last
      const { payload, probabilities, engine } = await this.thread.request("classify", picture, [picture.bitmap, picture.bytes.buffer]);
      if (number !== this.count) return;
      storePayload(`picture ${number}`, payload);
      this.answer.show(probabilities);
      this.showProblem("");
      if (number > 1) this.recordAction({ kind: "picture" });
      this.main.dataset.state = "ready";
      this.show();
      element(".facts").textContent = `${this.facts} ${translate("facts engine", { engine })}`;
    } catch (error) {
      this.showProblem(translate(/** @type {Error} */ (error).message === "large" ? "too large" : "unreadable"));
    }
    this.main.dataset.state = "ready";
  }

  /** @param {string} sentence "" for none */
  showProblem(sentence) {
    const line = element(".problem");
    line.hidden = !sentence;
    line.textContent = sentence;
  }

  /** Draw the current step. */
  show() {
    this.selection = this.initialSelection;
    this.other = -1;
    this.card.draw();
    this.mount();
    element(".numbers").hidden = !this.course.hasExplained("numbers");
    element(".experiment").hidden = !this.course.hasExplained("believe");
    this.drawExperiment(this.answer.probabilities);
    this.updateTrace();
  }

  /** Mount or update the viewer. */
  mount() {
    this.revision += 1;
    mount({
      data: {
        name: "lesson", payload: `picture ${this.count}`, seed: this.selection, revision: this.revision, computed: null,
        method: null, group: "", compact: false, paintable: this.course.hasExplained("believe"), occlusion: null,
        masks: "", features: null, alone: true,
      },
      parentElement: this.main,
      setStateValue: (_, selection) => this.selectionChanged(/** @type {Selection} */ (selection)),
    });
    // The lesson shows the only setting it keeps, and the keys, below the map instead of in a menu.
    const instrument = element(".instrument"), panel = element(".panel");
    if (panel.parentElement !== instrument) instrument.append(panel);
    /** @type {HTMLButtonElement} */ (element(".present")).disabled = true; // its key, too; the page has its own layout
  }

  /** @param {Selection} selection selection that the user made in the viewer */
  selectionChanged(selection) {
    const hid = String(selection.hidden) !== String(this.selection.hidden);
    this.selection = selection;
    if (hid) this.occlude(selection.hidden);
    this.recordAction({ kind: "chosen", selection });
    this.updateTrace();
  }

  // ---- one head by its numbers ------------------------------------------------------------------------------

  /** Subject of the numbers: block and head of the viewer, its query, and the key token under the pointer. */
  get subject() {
    const state = /** @type {Viewer} */ (this.viewer).state;
    const { block, head } = state.selection;
    if (state.readKey >= 0 && state.readKey !== this.other) this.compare(state.readKey, false);
    return { block: typeof block === "number" ? block : this.course.depth - 1, head: typeof head === "number" ? head : 0, token: state.query, other: this.other };
  }

  /**
   * Compare the query with another key token.
   *
   * @param {number} token
   * @param {boolean} [now]
   */
  compare(token, now = true) {
    this.other = token;
    this.recordAction({ kind: "number" });
    if (now) this.updateTrace();
  }

  /** Update the numbers from the viewer. One trace is requested at a time; changes meanwhile cause one more request. */
  async updateTrace() {
    if (element(".numbers").hidden || this.tracing || !this.viewer?.payload || this.main.dataset.state !== "ready") return;
    const { subject, count } = this;
    const key = JSON.stringify([count, subject]);
    if (key === this.traceKey) return;
    this.traceKey = key;
    this.tracing = true;
    const { block, head, token } = subject;
    const other = subject.other >= 0 ? subject.other : this.strongest(block, head, token);
    const trace = await this.thread.request("trace", { block, head, token, other });
    this.tracing = false;
    if (count === this.count) this.numbers.draw(trace, { block, head, token, other }, this.viewer.payload);
    this.updateTrace();
  }

  /**
   * Return the token that gets the most attention from another one.
   *
   * @param {number} block
   * @param {number} head
   * @param {number} token
   */
  strongest(block, head, token) {
    const { payload } = /** @type {Viewer} */ (this.viewer);
    const row = new Float32Array(payload.tokens);
    payload.fill(block, head, token, "from", row, 0);
    return row.indexOf(Math.max(...row));
  }

  // ---- patches hidden from the model ------------------------------------------------------------------------

  /** @param {boolean} strongest hide the strongest patches of the map instead of others */
  hide(strongest) {
    const { map, payload } = /** @type {Viewer} */ (this.viewer);
    this.hidePatches(patchesToHide(map.values.slice(map.at + payload.split, map.at + payload.tokens), strongest));
  }

  /** @param {number[]} hidden */
  hidePatches(hidden) {
    this.selection = { ...this.selection, hidden };
    this.mount();
    this.occlude(hidden);
  }

  /** @param {number[]} hidden hidden patches */
  async occlude(hidden) {
    const { count } = this;
    const probabilities = await this.thread.request("occlude", hidden);
    if (count !== this.count || String(hidden) !== String(this.selection.hidden)) return;
    if (hidden.length) this.recordAction({ kind: "hidden" });
    this.drawExperiment(probabilities);
  }

  /** @param {Float64Array} probabilities probabilities without the hidden patches */
  drawExperiment(probabilities) {
    const { best, labels } = this.answer;
    this.experiment.draw(labels[best], this.answer.probabilities[best], probabilities[best], this.selection.hidden.length);
  }
}

new Lesson();
