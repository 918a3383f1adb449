// A step of the tour: the map is brought into view, and the control that the step asks to use, which is outlined. Who
// uses it has done the step, which is said.

const OUTLINE = "3px solid #c9803a", DONE = "3px solid #3b929a"; // visible on a light and on a dark page
const LOOK = 300; // [ms] between two looks whether the page has drawn the control anew
const MARGIN = 12; // [px] around it

let step = 0; // that was brought into view last
let done = 0; // the last step that was done
let following = false; // what the step shows is kept in view, until the person scrolls or uses something
/** @type {HTMLElement | undefined} */
let outlined;
let stop = () => {}; // what the step before listens to

/** The script draws the page anew, so that what is above the map may still grow or shrink. */
const isDrawing = () => document.querySelector("[data-test-script-state=running]") !== null;

/**
 * The control that people read as `name`, in the page or in a component of it.
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
 * Scroll to the map, and further only as far as it takes to see a control above the tour's own bar, which hides what is
 * behind it; where they do not fit together, the control is seen.
 *
 * @param {HTMLElement | null} map
 * @param {HTMLElement | undefined} element the control
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
 * @param {{ data: { step: number, map: string, control: string, act: string }, parentElement: ShadowRoot }} told
 */
export default ({ data, parentElement }) => {
  const said = /** @type {HTMLElement} */ (parentElement.querySelector("p"));
  const tell = () => (said.hidden = done !== data.step);
  const look = () => {
    const target = control(data.control);
    outline(target);
    // Whatever comes in above moves it, and the bar grows with its text.
    if (following && !isDrawing()) reveal(document.getElementById(data.map), done === data.step ? undefined : target);
  };
  const leave = () => (following = false);
  /** @param {Event} event */
  const notice = (event) => {
    const target = control(data.control);
    if (!target || !event.composedPath().includes(target)) return;
    done = data.step;
    leave();
    tell();
    outline(target);
  };
  /** @param {Event} event a click, maybe on the link to the map */
  const see = (event) => {
    const [link] = event.composedPath();
    if (!(link instanceof HTMLAnchorElement) || link.hash !== `#${data.map}`) return;
    event.preventDefault();
    following = true;
    look();
  };
  const acts = { [data.act]: notice, wheel: leave, touchmove: leave, keydown: leave, pointerdown: leave };
  stop();
  for (const [name, act] of Object.entries(acts)) document.addEventListener(name, act, { capture: true, passive: true });
  document.addEventListener("click", see);
  const timer = setInterval(look, LOOK);
  stop = () => {
    for (const [name, act] of Object.entries(acts)) document.removeEventListener(name, act, { capture: true });
    document.removeEventListener("click", see);
    clearInterval(timer);
  };
  tell();
  if (data.step !== step) {
    step = data.step;
    following = true;
    document.getElementById(data.map)?.scrollIntoView();
  }
  look();
  return () => {
    stop();
    outline(undefined);
    step = 0; // the tour ends
  };
};
