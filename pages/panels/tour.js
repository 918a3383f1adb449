// Brings the map into view when a step of the tour begins, which itself covers the lower part of the window.

let step = 0; // that was brought into view last

/** The script draws the page anew, so that what is above the map may still grow or shrink. */
const isDrawing = () => document.querySelector("[data-test-script-state=running]") !== null;

/**
 * Now if the map is there, and once more where it is when the page is drawn.
 *
 * @param {number} asked
 * @param {string} id
 */
function bring(asked, id) {
  const map = document.getElementById(id);
  map?.scrollIntoView();
  const wait = () => {
    if (asked !== step) return; // the person went on
    if (!isDrawing() && document.getElementById(id)) document.getElementById(id)?.scrollIntoView();
    else requestAnimationFrame(wait);
  };
  requestAnimationFrame(wait);
}

/** @param {{ data: { step: number, map: string } }} told */
export default ({ data }) => {
  if (data.step === step) return;
  step = data.step;
  bring(step, data.map);
  return () => {
    step = 0; // the tour ends
  };
};
