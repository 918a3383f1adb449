// The model's most probable classes, with bars.

import { percent } from "../../view/web/captions.js";
import { element, make } from "./elements.js";
import { translate } from "../../view/web/words.js";

const SHOWN = 3; // number of classes

/** The prediction beside the picture. */
export class Answer {
  /** @param {string[]} labels */
  constructor(labels) {
    this.labels = labels;
    /** @type {Float64Array} */
    this.probabilities = new Float64Array(labels.length);
  }

  /** The most probable class. */
  get best() {
    return this.probabilities.indexOf(Math.max(...this.probabilities));
  }

  /** @param {Float64Array} probabilities probability of each class */
  show(probabilities) {
    this.probabilities = probabilities;
    const order = [...probabilities.keys()].sort((a, b) => probabilities[b] - probabilities[a]).slice(0, SHOWN);
    const rows = order.map((label) => {
      const bar = make("i");
      bar.style.width = `${100 * probabilities[label]}%`;
      return make("li", {}, make("span", { textContent: this.labels[label] }), make("b", { textContent: percent(probabilities[label]) }), make("div", { className: "bar" }, bar));
    });
    element(".answer").replaceChildren(make("h2", { textContent: translate("answer") }), make("ol", {}, ...rows));
  }
}
