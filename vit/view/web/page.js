// The viewer's own elements on the page, and small things done to elements.

import { NEAREST } from "./picture_map.js";

/** The elements of `viewer.html` below one parent. */
export class Page {
  /** @param {HTMLElement} parent */
  constructor(parent) {
    this.root = /** @type {HTMLElement} */ (parent.querySelector(".vit"));
    /** @type {Map<string, HTMLElement>} */
    this.elements = new Map(); // they stay; asking for them again costs nothing
    this.over = /** @type {HTMLCanvasElement} */ (this.find(".over"));
    this.gridCanvas = /** @type {HTMLCanvasElement} */ (this.find(".grid"));
    this.near = Array.from({ length: NEAREST }, () => document.createElement("div"));
    for (const element of this.near) element.className = "near";
    this.find(".query").before(...this.near);
  }

  /** @param {string} selector */
  find(selector) {
    let element = this.elements.get(selector);
    if (!element) this.elements.set(selector, (element = /** @type {HTMLElement} */ (this.root.querySelector(selector))));
    return element;
  }

  /**
   * The control of a field of the selection, be it an input or a select.
   *
   * @param {string} field
   */
  control(field) {
    return /** @type {HTMLInputElement} */ (this.find(`[data-field=${field}]`));
  }

  /** @returns {NodeListOf<HTMLElement>} groups of buttons, of which one is pressed */
  get switches() {
    return this.root.querySelectorAll(".switch");
  }

  /** Whether dragging over the picture hides patches. */
  get painting() {
    return !this.find(".painting").hidden && this.control("paint").checked;
  }
}

/**
 * Write text where it is another one.
 *
 * @param {Element} element
 * @param {string} text
 */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Whether a finger points, which cannot hover. */
export function byTouch() {
  return globalThis.matchMedia?.("(pointer: coarse)").matches ?? false;
}

/** @param {number} share */
export function percentage(share) {
  return `${100 * share}%`;
}
