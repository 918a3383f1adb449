// A step of the tour: the map is brought into view, and the control outlined that the step asks to use. Who uses it has
// done the step, which is said.

const OUTLINE = "3px solid #c9803a", DONE = "3px solid #3b929a"; // visible on a light and on a dark page
const LOOK = 300; // [ms] between two looks whether the page has drawn the control anew
const MARGIN = 12; // [px] around it

let step = 0; // that was brought into view last
let done = 0; // the last step that was done
/** @type {HTMLElement | undefined} */
let outlined;
let timer = 0;

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
  for (const element of root.querySelectorAll("button, label, canvas[aria-label]")) {
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
 * Now if the map is there, and once more where it is when the page is drawn; then the control, where it is not in view.
 *
 * @param {number} asked
 * @param {string} id
 * @param {string} name
 */
function bring(asked, id, name) {
  const map = document.getElementById(id);
  map?.scrollIntoView();
  const wait = () => {
    if (asked !== step) return; // the person went on
    if (!isDrawing() && document.getElementById(id)) {
      document.getElementById(id)?.scrollIntoView();
      show(control(name));
    } else requestAnimationFrame(wait);
  };
  requestAnimationFrame(wait);
}

/**
 * Scroll no further than it takes to see a control above the tour's own bar.
 *
 * @param {HTMLElement | undefined} element
 */
function show(element) {
  const bar = document.querySelector("[data-testid=stBottom]")?.getBoundingClientRect().top ?? innerHeight;
  const { top, bottom } = element?.getBoundingClientRect() ?? { top: 0, bottom: 0 };
  const over = Math.min(bottom + MARGIN - bar, top - MARGIN);
  if (element && over > 0 && bottom + MARGIN > bar)
    document.querySelector("[data-testid=stMain]")?.scrollBy({ top: over });
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
  /** @param {Event} event */
  const notice = (event) => {
    const target = control(data.control);
    if (!target || !event.composedPath().includes(target)) return;
    done = data.step;
    tell();
    outline(target);
  };
  tell();
  document.addEventListener(data.act, notice, { capture: true, passive: true });
  clearInterval(timer);
  timer = setInterval(() => outline(control(data.control)), LOOK);
  if (data.step !== step) {
    step = data.step;
    bring(step, data.map, data.control);
  }
  outline(control(data.control));
  return () => {
    document.removeEventListener(data.act, notice, { capture: true });
    clearInterval(timer);
    outline(undefined);
    step = 0; // the tour ends
  };
};
