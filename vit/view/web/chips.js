// Chips for the prefix tokens, each with its weight and colour.

import { chipName, signed, percent, prefixMeaning } from "./captions.js";
import { setText } from "./page.js";
import { comparesFeatures } from "./selection.js";

/** @import { Colours } from "./colours.js" */
/** @import { Page } from "./page.js" */
/** @import { PayloadLayout } from "./payload.js" */
/** @import { PictureMap } from "./picture_map.js" */
/** @import { Selection, View } from "./types" */

/** The chips of a payload's prefix tokens. */
export class Chips {
  /**
   * @param {Page} page
   * @param {PayloadLayout} payload
   */
  constructor(page, payload) {
    this.every = payload.prefix.map(chipOf);
    const row = page.find(".tokens");
    row.replaceChildren(...this.every.map(({ chip }) => chip));
    row.hidden = this.every.length === 0;
  }

  /**
   * Show the map's values on the chips.
   *
   * @param {PictureMap} map
   * @param {View} view
   * @param {number} query token that the map belongs to
   * @param {Selection} selection
   * @param {Colours} colours
   */
  draw({ values, at, low, top }, view, query, selection, colours) {
    this.every.forEach(({ chip, swatch, weight }, token) => {
      const value = values[at + token];
      swatch.style.backgroundColor = colours.css(value, low, top);
      setText(weight, comparesFeatures(view) ? signed(value) : percent(value));
      chip.classList.toggle("current", token === query);
      chip.setAttribute("aria-pressed", String(selection.pinned && selection.token === token));
    });
  }
}

/** @param {string} name name of the token */
function chipOf(name) {
  const chip = Object.assign(document.createElement("button"), { type: "button", title: prefixMeaning(name) });
  const swatch = document.createElement("i");
  const label = Object.assign(document.createElement("span"), { textContent: chipName(name) });
  const weight = document.createElement("data");
  chip.append(swatch, label, weight);
  return { chip, swatch, weight };
}
