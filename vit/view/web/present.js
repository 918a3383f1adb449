// Presentation: the picture and the grid fill the screen, with one line of large text.

/** @import { Viewer } from "./viewer.js" */

/** @param {Viewer} viewer */
export function listenToPresent(viewer) {
  const { root, page } = viewer;
  page.find(".present").addEventListener("click", () => present(viewer, !root.matches(".presenting")));
  page.find(".leave").addEventListener("click", () => present(viewer, false));
  root.addEventListener("fullscreenchange", () => root.matches(":fullscreen") || present(viewer, false));
}

/**
 * Begin or end the presentation; returns whether that changes anything. Without full screen, which iPhones and some
 * frames lack, it covers the window.
 *
 * @param {Viewer} viewer
 * @param {boolean} on
 */
export function present({ root, page }, on) {
  if (root.matches(".presenting") === on) return false;
  const parent = /** @type {HTMLElement} */ (root.parentElement);
  parent.style.minHeight = on ? `${parent.offsetHeight}px` : ""; // the page must not get shorter, and so scroll
  root.classList.toggle("presenting", on);
  page.over.focus({ preventScroll: true }); // for the keys
  if (on) root.requestFullscreen?.().catch(() => {});
  else if (root.matches(":fullscreen")) document.exitFullscreen();
  return true;
}
