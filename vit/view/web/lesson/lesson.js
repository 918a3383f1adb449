// The lesson's page: what `vit.view.lesson` put there, put to work.

import { opened } from "../bytes.js";
import { storePayload } from "../payload_registry.js";
import { mount } from "../viewer.js";
import { Answer } from "./answer.js";
import { Card } from "./card.js";
import { Course } from "./course.js";
import { element } from "./elements.js";
import { Pictures } from "./pictures.js";
import { bytesOf } from "./text.js";
import { Thread } from "./thread.js";
import { say, useWords } from "../words.js";

/** @import { LessonHeader, Selection } from "../types" */
/** @import { Act } from "./course.js" */

/** @type {Pick<Selection, "colormap" | "opacity" | "cover" | "smooth" | "scale" | "contour" | "mass" | "residual" | "fusion" | "discard" | "start_block" | "after_block">} what the steps leave as it is */
const USUAL = {
  colormap: "", opacity: 0.6, cover: "weight", smooth: false, scale: "shared", contour: "none", mass: 0.6,
  residual: 0.5, fusion: "mean", discard: 0, start_block: 0, after_block: -1,
};

const { words } = JSON.parse(element("#data").textContent ?? "");
useWords(words);

/** The lesson: a model, the picture that it saw, and where somebody is. */
class Lesson {
  constructor() {
    const bytes = bytesOf(element("#model").textContent ?? "");
    const { header, section } = opened(bytes);
    this.header = /** @type {LessonHeader} */ (/** @type {unknown} */ (header));
    this.main = element("main");
    this.thread = new Thread(element("#worker").textContent ?? "");
    for (const id of ["#model", "#worker"]) element(id).remove();
    const samples = this.header.samples.map((sample) => ({
      ...sample,
      file: new Blob([section(`sample:${sample.name}`, Uint8Array).slice()], { type: "image/jpeg" }),
    }));
    this.thread.ask("read", bytes, [bytes.buffer]);

    const { config } = this.header;
    this.course = new Course(config.depth);
    const rows = config.image_size[0] / config.patch_size, cols = config.image_size[1] / config.patch_size;
    this.middle = config.prefix.length + (rows >> 1) * cols + (cols >> 1);
    this.revision = this.count = 0; // of what the page shows, of pictures
    this.selection = this.usual;
    this.answer = new Answer(this.header.labels);
    this.card = new Card(this.course, { config, labels: this.header.labels, rows, cols }, () => this.show());
    this.pictures = new Pictures(samples, (file) => this.look(file));
    this.listen();
    this.pictures.choose(0);
  }

  /** What the viewer shows for the step, before anybody chose anything. @returns {Selection} */
  get usual() {
    return { ...USUAL, ...this.course.shows(this.middle) };
  }

  /** Notice what a step asks for. */
  listen() {
    const { main } = this;
    main.addEventListener("change", ({ target }) => {
      if (/** @type {Element} */ (target).matches("[data-field=lines]")) this.notice({ kind: "lines" });
    });
    for (const kind of ["pointerover", "click", "focusin"])
      main.addEventListener(kind, ({ target }) => {
        if (/** @type {Element} */ (target).closest(".tokens button")) this.notice({ kind: "class token" });
      });
  }

  /** @param {Act} act */
  notice(act) {
    if (this.course.notice(act)) this.card.draw();
  }

  /**
   * Look at a picture and show what the model says of it.
   *
   * @param {Blob} file
   */
  async look(file) {
    const number = ++this.count;
    this.main.dataset.state = "looking";
    try {
      const { payload, probabilities } = await this.thread.ask("look", file);
      if (number !== this.count) return; // another picture was chosen since
      storePayload(`picture ${number}`, payload);
      this.answer.show(probabilities);
      this.problem("");
      if (number > 1) this.notice({ kind: "picture" });
      this.show();
    } catch (error) {
      this.problem(say(/** @type {Error} */ (error).message === "large" ? "too large" : "unreadable"));
    }
    this.main.dataset.state = "ready";
  }

  /** @param {string} sentence "" for none */
  problem(sentence) {
    const line = element(".problem");
    line.hidden = !sentence;
    line.textContent = sentence;
  }

  /** Show what the step is about. */
  show() {
    this.selection = this.usual;
    this.revision += 1;
    this.card.draw();
    this.mount();
  }

  /** Tell the viewer what to show. */
  mount() {
    mount({
      data: {
        name: "lesson", payload: `picture ${this.count}`, seed: this.selection, revision: this.revision, computed: null,
        method: null, group: "", compact: false, paintable: this.course.step.name === "believe", occlusion: null,
        masks: "", features: null, alone: true,
      },
      parentElement: this.main,
      setStateValue: (_, selection) => {
        this.selection = /** @type {Selection} */ (selection);
        this.notice({ kind: "chosen", selection: this.selection });
      },
    });
  }
}

new Lesson();
