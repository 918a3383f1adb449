// The experiment of the last step: hide patches from the model and compare its predictions.

import { percent } from "../../view/web/captions.js";
import { translate } from "../../view/web/words.js";
import { element } from "./elements.js";

const SHARE = 0.15; // share of the patches to hide

/**
 * Return the patches with the largest values, or equally many of the others, evenly spaced by index.
 *
 * @param {Float32Array} values (P)
 * @param {boolean} strongest
 */
export function patchesToHide(values, strongest) {
  const count = Math.max(1, Math.round(SHARE * values.length));
  const order = [...values.keys()].sort((a, b) => values[b] - values[a]);
  if (strongest) return order.slice(0, count).sort((a, b) => a - b);
  const others = order.slice(count).sort((a, b) => a - b);
  return Array.from({ length: count }, (_, i) => others[Math.floor(((i + 0.5) / count) * others.length)]);
}

/** Buttons that hide patches, and the probabilities before and after. */
export class Experiment {
  /**
   * @param {number} patches number of patches
   * @param {(strongest: boolean) => void} hide
   * @param {() => void} show
   */
  constructor(patches, hide, show) {
    const count = Math.max(1, Math.round(SHARE * patches));
    /** @type {Record<string, string>} */
    this.results = {};
    for (const [name, strongest] of /** @type {const} */ ([["strongest", true], ["others", false]])) {
      element(`.${name}`).textContent = translate(`hide ${name}`, { count });
      element(`.${name}`).addEventListener("click", () => hide(strongest));
    }
    element(".trials .none").addEventListener("click", show);
  }

  /**
   * Show the result.
   *
   * @param {string} label name of the class
   * @param {number} before its probability for the whole picture
   * @param {number} after its probability without the hidden patches
   * @param {number} count number of hidden patches
   */
  draw(label, before, after, count) {
    element(".result").textContent = count
      ? translate("hidden result", { count, label, before: percent(before), after: percent(after) })
      : translate("hide something", { label, before: percent(before) });
  }
}
