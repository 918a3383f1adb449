// Access to the viewer's elements, and small DOM utilities.

import { NEAREST } from "./picture_map.js";

// controls whose value is no field of the selection, or changes several fields
const SPECIAL = ["fuse_blocks", "fuse_heads", "lines", "whole", "paint"];

/** The elements of one instance of `viewer.html`. */
export class Page {
  /** @param {HTMLElement} parent */
  constructor(parent) {
    this.root = /** @type {HTMLElement} */ (parent.querySelector(".vit"));
    /** @type {Map<string, HTMLElement>} */
    this.elements = new Map(); // cache of `find`; elements are never replaced
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
   * Return an input or select by its `data-field`.
   *
   * @param {string} field
   */
  control(field) {
    return /** @type {HTMLInputElement} */ (this.find(`[data-field=${field}]`));
  }

  /** @returns {HTMLInputElement[]} inputs and selects whose value is the field of the selection in `data-field` */
  get settings() {
    /** @type {NodeListOf<HTMLInputElement>} */
    const controls = this.root.querySelectorAll("input[data-field], select[data-field]");
    return Array.from(controls).filter(({ dataset }) => !SPECIAL.includes(dataset.field ?? ""));
  }

  /** @returns {NodeListOf<HTMLElement>} button groups with one pressed button each */
  get switches() {
    return this.root.querySelectorAll(".switch");
  }

  /** Whether dragging over the picture hides patches. */
  get painting() {
    return !this.find(".painting").hidden && this.control("paint").checked;
  }
}

/**
 * Set an element's text if it differs: an equal assignment would still replace the text node.
 *
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Whether the primary pointer is a finger, which cannot hover. */
export function isTouch() {
  return globalThis.matchMedia?.("(pointer: coarse)").matches ?? false;
}

/** @param {number} share */
export function cssPercent(share) {
  return `${100 * share}%`;
}
