// A step of the tour: scrolls the map and the control to use into view and outlines the control. Using the control
// completes the step, which the page confirms.

const OUTLINE = "3px solid #c9803a", DONE = "3px solid #3b929a"; // visible on a light and on a dark page
const INTERVAL = 300; // [ms] between checks whether Streamlit has replaced the control
const MARGIN = 12; // [px] around the control

let step = 0; // last step that was scrolled into view
let done = 0; // last completed step
let following = false; // keep map and control in view, until the user scrolls or uses something
/** @type {HTMLElement | undefined} */
let outlined;
let stop = () => {}; // removes the previous step's listeners

/** Whether Streamlit is rerunning the script, so that the content above the map may still change its height. */
const isDrawing = () => document.querySelector("[data-test-script-state=running]") !== null;

/**
 * Return the visible control whose accessible text begins with `name`, in the page or in a component's shadow root.
 *
 * @param {string} name
 * @param {Document | ShadowRoot} [root]
 * @returns {HTMLElement | undefined}
 */
function control(name, root = document) {
  for (const element of root.querySelectorAll("button, label, summary, canvas[aria-label]")) {
    const text = element.getAttribute("aria-label") ?? element.textContent ?? "";
    if (text.trim().startsWith(name) && element.getClientRects().length) return /** @type {HTMLElement} */ (element);
  }
  for (const element of root.querySelectorAll("*")) {
    const inner = element.shadowRoot && control(name, element.shadowRoot);
    if (inner) return inner;
  }
  return undefined;
}

/**
 * Scroll to the map, and from there as little as needed to show the control above the tour's bar, which covers the
 * bottom of the page. If both do not fit, the control takes precedence.
 *
 * @param {HTMLElement | null} map
 * @param {HTMLElement | undefined} element control
 */
function reveal(map, element) {
  if (!map) return;
  const bar = document.querySelector("[data-testid=stBottom]")?.getBoundingClientRect().top ?? innerHeight;
  const head = parseFloat(getComputedStyle(map).scrollMarginTop);
  let by = map.getBoundingClientRect().top - head;
  if (element) {
    const { top, bottom } = element.getBoundingClientRect();
    by += Math.max(0, Math.min(bottom - by + MARGIN - bar, top - by - MARGIN - head));
  }
  if (Math.abs(by) >= 1) document.querySelector("[data-testid=stMain]")?.scrollBy({ top: by });
}

/** @param {HTMLElement | undefined} element */
function outline(element) {
  if (outlined && outlined !== element) outlined.style.outline = outlined.style.outlineOffset = "";
  outlined = element;
  if (!element) return;
  element.style.outline = done === step ? DONE : OUTLINE;
  element.style.outlineOffset = "2px";
}

/**
 * @param {{ data: { step: number, map: string, control: string, act: string }, parentElement: ShadowRoot }} mount
 */
export default ({ data, parentElement }) => {
  const doneText = /** @type {HTMLElement} */ (parentElement.querySelector("p"));
  const updateDone = () => (doneText.hidden = done !== data.step);
  const check = () => {
    const target = control(data.control);
    outline(target);
    // Content loaded above moves the map, and the bar grows with its text.
    if (following && !isDrawing()) reveal(document.getElementById(data.map), done === data.step ? undefined : target);
  };
  const stopFollowing = () => (following = false);
  /** @param {Event} event */
  const onUse = (event) => {
    const target = control(data.control);
    if (!target || !event.composedPath().includes(target)) return;
    done = data.step;
    stopFollowing();
    updateDone();
    outline(target);
  };
  /** @param {Event} event click, possibly on the link to the map */
  const onClick = (event) => {
    const [link] = event.composedPath();
    if (!(link instanceof HTMLAnchorElement) || link.hash !== `#${data.map}`) return;
    event.preventDefault();
    following = true;
    check();
  };
  const acts = {
    [data.act]: onUse, wheel: stopFollowing, touchmove: stopFollowing, keydown: stopFollowing, pointerdown: stopFollowing,
  };
  stop();
  for (const [name, act] of Object.entries(acts)) document.addEventListener(name, act, { capture: true, passive: true });
  document.addEventListener("click", onClick);
  const timer = setInterval(check, INTERVAL);
  stop = () => {
    for (const [name, act] of Object.entries(acts)) document.removeEventListener(name, act, { capture: true });
    document.removeEventListener("click", onClick);
    clearInterval(timer);
  };
  updateDone();
  if (data.step !== step) {
    step = data.step;
    following = true;
    document.getElementById(data.map)?.scrollIntoView();
  }
  check();
  return () => {
    stop();
    outline(undefined);
    step = done = 0; // the tour has ended
  };
};
