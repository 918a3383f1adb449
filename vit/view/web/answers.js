// The most probable classes as bars, above the numbers.

import { percent } from "./captions.js";
import { cssPercent, isTouch, setText } from "./page.js";

/** @import { Page } from "./page.js" */
/** @import { Answers } from "./types" */

/**
 * Draw the bars, and invite to touch the picture. Beside the bars the numbers are folded until the user opens them.
 *
 * @param {Page} page
 * @param {Answers | null} answers null for a viewer without them
 */
export function showAnswers(page, answers) {
  const place = page.find(".answers");
  if (place.hidden && answers) foldAndInvite(page);
  place.hidden = !answers;
  setText(page.find(".says"), answers?.says ?? "");
  if (!answers) return;
  const rows = answers.bars.flatMap(([label, probability]) => {
    const [name, bar, share] = ["span", "i", "data"].map((tag) => document.createElement(tag));
    name.textContent = name.title = label;
    bar.style.backgroundSize = `${cssPercent(probability)} 100%`;
    share.textContent = percent(probability);
    return [name, bar, share];
  });
  const note = Object.assign(document.createElement("small"), { textContent: answers.note });
  place.replaceChildren(...rows, note);
  place.ariaLabel = `${answers.bars.map(([label, probability]) => `${label} ${percent(probability)}`).join(", ")}. ${answers.note}`;
}

/** @param {Page} page */
function foldAndInvite(page) {
  page.find(".folded").removeAttribute("open");
  const brightest = Object.assign(document.createElement("span"), { className: "brightest", textContent: "Yellow counts most. " });
  page.find(".invite").replaceChildren(brightest, `${isTouch() ? "Tap" : "Move over"} the picture.`);
  page.over.addEventListener("pointerenter", () => (page.find(".invite").style.visibility = "hidden"), { once: true });
}
