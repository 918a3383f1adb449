// The picture and what is drawn over it: the map, patch outlines, the contour, and hidden patches.

import { contextOf, Overlay } from "./canvas.js";
import { placeOverPatch, placePicture } from "./layout.js";
import { border } from "./maps.js";

/** @import { Colours } from "./colours.js" */
/** @import { Page } from "./page.js" */
/** @import { Payload } from "./payload.js" */
/** @import { PictureMap } from "./picture_map.js" */
/** @import { Selection, View } from "./types" */

/** The picture of a payload and its overlays. */
export class Picture {
  /**
   * @param {Page} page
   * @param {Payload} payload
   */
  constructor(page, payload) {
    this.page = page;
    this.payload = payload;
    this.overlay = new Overlay(page.over, payload);
    const bytes = /** @type {Uint8Array<ArrayBuffer>} */ (payload.picture);
    this.url = URL.createObjectURL(new Blob([bytes], { type: payload.header.picture.type }));
    /** @type {HTMLImageElement} */ (page.find(".picture")).src = this.url;
    placePicture(page, payload);
  }

  /** Release the picture's object URL. */
  destroy() {
    URL.revokeObjectURL(this.url);
  }

  /**
   * Return the mean colour index of the map's patches, 0 to 255.
   *
   * @param {PictureMap} map
   */
  meanColour(map) {
    const { values, at, top } = map.signed ? { values: map.values, at: this.payload.split, top: map.top } : map.painted;
    return map.ready ? this.overlay.mean(values, at, top) : 0;
  }

  /**
   * Paint the map. While an attention map is not ready, the previous one stays; other views are cleared.
   *
   * @param {PictureMap} map
   * @param {View} view
   * @param {Colours} colours
   * @param {boolean} smooth
   */
  paint(map, view, colours, smooth) {
    const { values, at, top } = map.painted;
    if (map.ready && map.colours) this.overlay.paintColours(map.colours, colours.strongest);
    else if (map.ready) this.overlay.paint(values, at, top, colours.veil, smooth);
    else if (view !== "attention" && view !== "pool") this.overlay.clear();
    this.page.over.classList.toggle("stale", !map.ready);
    this.page.over.classList.toggle("blended", map.colours !== null && smooth);
    this.page.root.toggleAttribute("data-unready", !map.ready);
  }

  /**
   * Draw the contour around the strongest patches, if enabled.
   *
   * @param {PictureMap} map
   * @param {Selection} selection
   */
  drawContour(map, { contour, mass }) {
    const { rows, cols } = this.payload;
    const path = contour === "none" || !map.ready || map.colours ? "" : border(map.outline(contour, mass), rows, cols);
    for (const line of this.page.find(".contour").children) if (line.getAttribute("d") !== path) line.setAttribute("d", path);
  }

  /**
   * Outline the query, the patch under the pointer and, in views that have them, the nearest patches.
   *
   * @param {number} query
   * @param {number} read token whose value is read
   * @param {PictureMap | null} nearest map with the nearest patches, null for other views
   */
  outlinePatches(query, read, nearest) {
    const { page, payload } = this;
    placeOverPatch(page.find(".query"), payload, query);
    placeOverPatch(page.find(".key"), payload, read === query ? -1 : read);
    if (nearest || !page.near[0].hidden)
      page.near.forEach((element, i) => {
        placeOverPatch(element, payload, nearest ? nearest.nearest[i] : -1);
        element.classList.toggle("mutual", Boolean(nearest?.mutual[i]));
      });
  }

  /**
   * Cover the patches that are hidden from the model.
   *
   * @param {number[]} hidden
   */
  drawHidden(hidden) {
    const { page, payload } = this;
    const canvas = /** @type {HTMLCanvasElement} */ (page.find(".covered"));
    Object.assign(canvas, { width: payload.cols, height: payload.rows });
    const context = contextOf(canvas);
    context.fillStyle = "rgb(120 120 120 / 88%)";
    // A compact viewer shows the picture without the hidden patches.
    const marksHidden = !page.find(".painting").hidden || page.root.classList.contains("compact");
    for (const patch of marksHidden ? hidden : []) context.fillRect(patch % payload.cols, Math.floor(patch / payload.cols), 1, 1);
    page.find(".unhide").hidden = page.find(".swap").hidden = hidden.length === 0;
  }
}
