// The colour scale below the picture: ramp, ticks (weights and multiples of uniform attention), and an explanation.

import { clearText, sharesText, signed, legendText, percent, roundTicks } from "./captions.js";
import { contextOf } from "./canvas.js";
import { cssPercent, setText } from "./page.js";
import { comparesFeatures } from "./selection.js";
import { decimal, translate } from "./words.js";

/** @import { Colours } from "./colours.js" */
/** @import { Page } from "./page.js" */
/** @import { Features } from "./payload.js" */
/** @import { PictureMap } from "./picture_map.js" */
/** @import { Selection, View } from "./types" */

const TICKS = 5; // largest number of ticks

/** The legend of one viewer. */
export class Legend {
  /** @param {Page} page */
  constructor(page) {
    this.page = page;
    this.drawnKey = ""; // values that the legend was last drawn with
    this.ticks = new Float64Array(12);
  }

  /**
   * Paint the ramp: opaque in the upper row, with opacity as over the picture in the lower row.
   *
   * @param {Colours} colours
   */
  paintRamp(colours) {
    const context = contextOf(/** @type {HTMLCanvasElement} */ (this.page.find(".ramp canvas")));
    const image = context.createImageData(256, 2);
    const pixels = new Uint32Array(image.data.buffer);
    pixels.set(colours.ramp);
    pixels.set(colours.veil, 256);
    context.putImageData(image, 0, 0);
  }

  /**
   * @param {PictureMap} map
   * @param {View} view
   * @param {Selection} selection
   * @param {number} mean colour index below which the picture is clear, 0 to 255
   * @param {boolean} shared another map of the same kind uses the same scale
   * @param {number} query token that the map belongs to
   * @param {number} read value under the pointer, or NaN
   * @param {boolean} whole the map's weights sum to 100%
   * @param {Features | null} features features of the view "components"
   */
  draw(map, view, { scale }, mean, shared, query, read, whole, features) {
    this.drawCaret(map, read);
    const exceeded = this.drawOverflow(map, view, query);
    if (map.colours && features) setText(this.page.find(".shares"), sharesText(features));
    const key = `${map.low} ${map.top} ${view} ${scale} ${mean} ${shared} ${whole} ${exceeded}`;
    if (this.drawnKey === key) return;
    this.drawnKey = key;
    this.drawScale(map, view);
    this.drawDescription(map, view, scale, mean, shared, whole, exceeded);
  }

  /**
   * Move the caret to a value.
   *
   * @param {PictureMap} map
   * @param {number} read
   */
  drawCaret({ low, top }, read) {
    const caret = this.page.find(".caret");
    caret.hidden = Number.isNaN(read);
    if (caret.hidden) return;
    caret.style.left = cssPercent(Math.min(1, Math.max(0, top > low ? (read - low) / (top - low) : 0)));
  }

  /**
   * Show a marker if patches exceed the end of the scale; return whether they do.
   *
   * @param {PictureMap} map
   * @param {View} view
   * @param {number} query
   */
  drawOverflow(map, view, query) {
    const traced = view === "rollout" || view === "relevance";
    const most = comparesFeatures(view) ? 0 : map.strongest(traced ? query : -1);
    const beyond = this.page.find(".beyond");
    const exceeded = most > map.top * 1.005;
    beyond.hidden = !exceeded;
    beyond.title = beyond.hidden ? "" : translate("Stronger patches, up to {most}, have the last colour", { most: percent(most) });
    return exceeded;
  }

  /**
   * @param {PictureMap} map
   * @param {View} view
   */
  drawScale(map, view) {
    const { page } = this;
    const { low, top, payload } = map;
    const similar = comparesFeatures(view);
    page.find(".legend").classList.toggle("cosines", similar || map.signed);
    page.find(".legend").classList.toggle("components", view === "components");
    setText(page.find(".unit.weights"), similar ? "cosine" : map.signed ? "evidence" : translate("weight"));
    if (!similar && !map.signed)
      this.drawTicks(page.find(".times"), 0, top, payload.tokens, (times) =>
        times >= 10 ? String(Math.round(times)) : decimal(String(+times.toFixed(3))),
      );
    this.drawTicks(page.find(".ticks.weights"), low, top, similar ? 1 : 100, (value) =>
      similar ? String(+value.toPrecision(3)).replace("-", "−") : value ? translate("{digits}%", { digits: decimal(String(+value.toPrecision(3)).replace("-", "−")) }) : "0",
    );
  }

  /**
   * @param {HTMLElement} row
   * @param {number} low
   * @param {number} top
   * @param {number} unit ticks are values times this
   * @param {(value: number) => string} format
   */
  drawTicks(row, low, top, unit, format) {
    const count = roundTicks(low * unit, top * unit, TICKS, this.ticks);
    while (row.children.length < count) row.append(document.createElement("span"));
    for (let i = 0; i < row.children.length; i++) {
      const span = /** @type {HTMLElement} */ (row.children[i]);
      span.hidden = i >= count;
      if (span.hidden) continue;
      const share = (this.ticks[i] / unit - low) / (top - low);
      span.style.left = cssPercent(share);
      span.className = share < 0.02 ? "start" : share > 0.97 ? "end" : "";
      setText(span, format(this.ticks[i]));
    }
  }

  /**
   * Set the tooltip and the accessible label.
   *
   * @param {PictureMap} map
   * @param {View} view
   * @param {Selection["scale"]} scale
   * @param {number} mean
   * @param {boolean} shared
   * @param {boolean} whole
   * @param {boolean} exceeded
   */
  drawDescription({ low, top, payload }, view, scale, mean, shared, whole, exceeded) {
    const legend = this.page.find(".legend");
    const clear = mean && view !== "components" && low >= 0 ? clearText(view, low + (mean / 255) * (top - low)) : "";
    const ends = comparesFeatures(view) ? { low: signed(low), top: signed(top) } : { low: percent(low), top: percent(top) };
    const text = legendText(payload, view, scale, low, top, shared, whole, exceeded) + clear;
    legend.title = text;
    legend.setAttribute("aria-label", `${translate("Colour scale from {low} to {top}.", ends)} ${text}`);
  }
}
