// A row of numbers as colours, with one selected by pointer, touch or arrow keys.

import { decimal } from "../../view/web/words.js";
import { make } from "./elements.js";

const NEGATIVE = [201, 128, 58], POSITIVE = [59, 146, 154]; // the page's accent colours, readable on light and dark

/**
 * Format a number with up to three decimals.
 *
 * @param {number} value
 */
export function number(value) {
  const size = Math.abs(value);
  const digits = size === 0 || size >= 0.0005 ? size.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 3) : size.toExponential(1);
  return (value < 0 ? "−" : "") + decimal(digits);
}

/** A strip of numbers. */
export class Strip {
  /**
   * @param {string} label
   * @param {(channel: number) => void} onSelect
   */
  constructor(label, onSelect) {
    this.label = label;
    this.onSelect = onSelect;
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "slider");
    this.canvas.setAttribute("aria-label", label);
    this.canvas.setAttribute("aria-valuemin", "1");
    this.mark = make("i", { hidden: true });
    this.root = make("div", { className: "strip" }, make("span", { textContent: label }), make("div", {}, this.canvas, this.mark));
    /** @type {Float32Array} */
    this.values = new Float32Array(1);
    for (const kind of /** @type {const} */ (["pointerdown", "pointermove"])) // a tap moves nothing
      this.canvas.addEventListener(kind, ({ offsetX }) => onSelect(Math.floor((offsetX / this.canvas.clientWidth) * this.values.length)));
    this.canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      onSelect(Number(this.canvas.getAttribute("aria-valuenow") ?? 1) - 1 + step);
    });
  }

  /**
   * @param {Float32Array} values
   * @param {number} [most] absolute value that has the full colour
   */
  draw(values, most = values.reduce((top, value) => Math.max(top, Math.abs(value)), 1e-30)) {
    this.values = values;
    this.canvas.width = values.length;
    this.canvas.height = 1;
    this.canvas.setAttribute("aria-valuemax", String(values.length));
    const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    const image = context.createImageData(values.length, 1);
    values.forEach((value, i) => image.data.set([...(value < 0 ? NEGATIVE : POSITIVE), 255 * Math.min(1, Math.abs(value) / most)], 4 * i));
    context.putImageData(image, 0, 0);
    this.updateValue(Math.min(Number(this.canvas.getAttribute("aria-valuenow") ?? 1), values.length) - 1);
  }

  /** @param {number} channel */
  point(channel) {
    const { values, mark } = this;
    mark.hidden = false;
    mark.style.left = `${(100 * channel) / values.length}%`;
    mark.style.width = `${100 / values.length}%`;
    this.updateValue(channel);
  }

  /**
   * Set the value that screen readers announce.
   *
   * @param {number} channel
   */
  updateValue(channel) {
    const { values } = this;
    this.canvas.setAttribute("aria-valuenow", String(channel + 1));
    this.canvas.setAttribute("aria-valuetext", number(values[channel]));
  }
}
