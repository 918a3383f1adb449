// The experiment of the last step: hide patches from the model, and see what becomes of its answer.

import { percent } from "../captions.js";
import { say } from "../words.js";
import { element } from "./elements.js";

const SHARE = 0.15; // of the patches are hidden at once

/**
 * Patches with the largest values, or as many of the others, drawn evenly by their number.
 *
 * @param {Float32Array} values of the patches
 * @param {boolean} strongest
 */
export function patchesToHide(values, strongest) {
  const count = Math.max(1, Math.round(SHARE * values.length));
  const order = [...values.keys()].sort((a, b) => values[b] - values[a]);
  if (strongest) return order.slice(0, count).sort((a, b) => a - b);
  const others = order.slice(count).sort((a, b) => a - b);
  return Array.from({ length: count }, (_, i) => others[Math.floor(((i + 0.5) / count) * others.length)]);
}

/** Buttons that hide patches, and what the answer was before and is without them. */
export class Experiment {
  /**
   * @param {number} patches of a picture
   * @param {(strongest: boolean) => void} hide
   * @param {() => void} show
   */
  constructor(patches, hide, show) {
    const count = Math.max(1, Math.round(SHARE * patches));
    /** @type {Record<string, string>} */
    this.results = {};
    for (const [name, strongest] of /** @type {const} */ ([["strongest", true], ["others", false]])) {
      element(`.${name}`).textContent = say(`hide ${name}`, { count });
      element(`.${name}`).addEventListener("click", () => hide(strongest));
    }
    element(".trials .none").addEventListener("click", show);
  }

  /**
   * @param {string} label of the class that is followed
   * @param {number} before
   * @param {number} after
   * @param {number} count of patches that are hidden
   */
  tell(label, before, after, count) {
    element(".result").textContent = count
      ? say("hidden result", { count, label, before: percent(before), after: percent(after) })
      : say("hide something", { label, before: percent(before) });
  }
}
