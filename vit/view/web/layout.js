// Positions of the picture, its patches, and the grid of maps with its labels.

import { capital } from "./captions.js";
import { cssPercent } from "./page.js";
import { translate } from "./words.js";

/** @import { Mosaic } from "./canvas.js" */
/** @import { Page } from "./page.js" */
/** @import { PayloadLayout } from "./payload.js" */
/** @import { Cell } from "./types" */

const LONGEST = 2.5; // largest visible length of a panorama, in multiples of the patch grid's other side

/**
 * Return the visible range along one axis: picture and patches, or a part around the patches if that is too long.
 *
 * @param {number} from
 * @param {number} to
 * @param {number} length
 * @param {number} longest
 */
function extent(from, to, length, longest) {
  const first = Math.min(0, from), last = Math.max(length, to);
  if (last - first <= longest) return [first, last];
  const margin = Math.max(0, longest - (to - from)) / 2;
  return [Math.max(first, from - margin), Math.min(last, to + margin)];
}

/**
 * Return the visible area in pixels of the picture: the model's input, or with "Whole photo" also what surrounds it.
 *
 * @param {Page} page
 * @param {PayloadLayout} payload
 */
function shownArea(page, { header: { picture, box } }) {
  const [left, top, right, bottom] = box;
  if (!page.control("whole").checked) return { x0: left, y0: top, width: right - left, height: bottom - top };
  const [x0, x1] = extent(left, right, picture.width, LONGEST * (bottom - top));
  const [y0, y1] = extent(top, bottom, picture.height, LONGEST * (right - left));
  return { x0, y0, width: x1 - x0, height: y1 - y0 };
}

/**
 * Position the picture and the box of its patches.
 *
 * @param {Page} page
 * @param {PayloadLayout} payload
 */
export function placePicture(page, payload) {
  const { picture, box } = payload.header;
  const { x0, y0, width, height } = shownArea(page, payload);
  const [left, top, right, bottom] = box;
  page.find("label.whole").hidden = left <= 0 && top <= 0 && right >= picture.width && bottom >= picture.height;
  /** @type {(element: HTMLElement, l: number, t: number, r: number, b: number) => void} */
  const put = (element, l, t, r, b) => {
    Object.assign(element.style, {
      left: cssPercent((l - x0) / width),
      top: cssPercent((t - y0) / height),
      width: cssPercent((r - l) / width),
      height: cssPercent((b - t) / height),
    });
  };
  page.find(".body").style.setProperty("--aspect", String(width / height));
  page.find(".picture").classList.toggle("tiny", Math.max(picture.width, picture.height) <= 128);
  put(page.find(".picture"), 0, 0, picture.width, picture.height);
  put(page.find(".box"), ...box);
  page.find(".lines").style.backgroundSize = `${100 / payload.cols}% ${100 / payload.rows}%`;
  page.find(".contour").setAttribute("viewBox", `0 0 ${payload.cols} ${payload.rows}`);
}

/**
 * Size the grid of maps and position its labels and fusion names.
 *
 * @param {Page} page
 * @param {PayloadLayout} payload
 * @param {Mosaic} mosaic
 */
export function placeMaps(page, payload, mosaic) {
  const [left, top, right, bottom] = payload.header.box;
  const patchAspect = ((right - left) / payload.cols) / ((bottom - top) / payload.rows);
  const mapsAspect = (mosaic.width * patchAspect) / mosaic.height;
  const { style } = page.find(".body");
  style.setProperty("--maps", String(mapsAspect));
  style.setProperty("--tiles", String(mosaic.width / mosaic.tileWidth));
  // The readings go below the shorter column; chips and legend take about a tenth of the width.
  const { width, height } = shownArea(page, payload);
  page.find(".body").classList.toggle("low", height / width + 0.2 < 0.88 / mapsAspect);
  labelColumns(page.find(".labels.columns"), payload, mosaic);
  labelRows(page.find(".labels.rows"), payload, mosaic);
  page.find(".fusion.heads").style.width = cssPercent(mosaic.tileWidth / mosaic.width);
  page.find(".fusion.blocks").style.height = cssPercent(mosaic.tileHeight / mosaic.height);
}

/**
 * @param {HTMLElement} columns
 * @param {PayloadLayout} payload
 * @param {Mosaic} mosaic
 */
function labelColumns(columns, payload, mosaic) {
  const labels = Array.from({ length: payload.heads }, (_, head) => label(translate("Head"), head + 1));
  columns.replaceChildren(...labels);
  labels.forEach((span, head) => {
    span.style.left = cssPercent(mosaic.left(head + 1) / mosaic.width);
    span.style.width = cssPercent(mosaic.tileWidth / mosaic.width);
  });
}

/**
 * @param {HTMLElement} rows
 * @param {PayloadLayout} payload
 * @param {Mosaic} mosaic
 */
function labelRows(rows, payload, mosaic) {
  const labels = Array.from({ length: payload.blocks }, (_, block) => label(translate("Block"), block + 1));
  if (payload.pool) labels.push(Object.assign(document.createElement("span"), { textContent: "Pooling" }));
  rows.replaceChildren(...labels);
  labels.forEach((span, line) => {
    span.style.top = cssPercent(mosaic.above(line + 1) / mosaic.height);
    span.style.height = cssPercent(mosaic.tileHeight / mosaic.height);
  });
}

/**
 * @param {string} word hidden by CSS if there is little space
 * @param {number} number
 */
function label(word, number) {
  const span = document.createElement("span");
  const long = Object.assign(document.createElement("b"), { textContent: `${word} ` });
  span.append(long, String(number));
  return span;
}

/**
 * Show the buttons of the views that the payload supports, and list its colour maps.
 *
 * @param {Page} page
 * @param {PayloadLayout} payload
 */
export function showAvailable(page, payload) {
  for (const [view, present] of [["similar", payload.features], ["pool", payload.pool]])
    page.find(`[data-value=${view}]`).hidden = page.find(`.keys .${view}`).hidden = !present;
  const options = payload.header.colormaps.map((name) =>
    Object.assign(document.createElement("option"), { value: name, textContent: capital(name) }),
  );
  page.control("colormap").replaceChildren(...options);
}

/**
 * Set the CSS classes that depend on the size on screen.
 *
 * @param {Page} page
 * @param {Mosaic} mosaic
 */
export function updateSize(page, mosaic) {
  const width = page.gridCanvas.clientWidth;
  const tile = (width * mosaic.tileWidth) / mosaic.width;
  page.find(".maps").classList.toggle("tight", tile < 42);
  page.gridCanvas.classList.toggle("shrunk", width * devicePixelRatio < mosaic.width * 1.2);
}

/**
 * Position an element over a patch; hide it for tokens that are not patches.
 *
 * @param {HTMLElement} element
 * @param {PayloadLayout} payload
 * @param {number} token
 */
export function placeOverPatch(element, { split, rows, cols }, token) {
  const patch = token - split;
  element.hidden = patch < 0;
  if (patch < 0) return;
  Object.assign(element.style, {
    left: cssPercent((patch % cols) / cols),
    top: cssPercent(Math.floor(patch / cols) / rows),
    width: cssPercent(1 / cols),
    height: cssPercent(1 / rows),
  });
}

/**
 * Position an element over a map of the grid; hide it for null.
 *
 * @param {HTMLElement} element
 * @param {Mosaic} mosaic
 * @param {Cell | null} cell
 */
export function placeOverCell(element, mosaic, cell) {
  element.hidden = !cell;
  if (!cell) return;
  Object.assign(element.style, {
    left: cssPercent(mosaic.left(cell.c) / mosaic.width),
    top: cssPercent(mosaic.above(cell.r) / mosaic.height),
    width: cssPercent(mosaic.tileWidth / mosaic.width),
    height: cssPercent(mosaic.tileHeight / mosaic.height),
  });
}

/**
 * Make one label bold, or none for an index that does not exist.
 *
 * @param {HTMLElement} labels
 * @param {number} index
 */
export function highlightLabel(labels, index) {
  for (let i = 0; i < labels.children.length; i++) {
    const name = i === index ? "chosen" : "";
    if (labels.children[i].className !== name) labels.children[i].className = name;
  }
}
