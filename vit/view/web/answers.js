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
 * @param {(label: string) => void} [ask] asks why the explained class rather than this one
 */
export function showAnswers(page, answers, ask) {
  const place = page.find(".answers");
  if (place.hidden && answers) foldAndInvite(page);
  place.hidden = !answers;
  setText(page.find(".says"), answers?.says ?? "");
  if (!answers) return;
  const { target, against } = answers, canAsk = ask && target;
  const rows = answers.bars.map(([label, probability, text]) => {
    const [name, bar, share] = ["span", "i", "data"].map((tag) => document.createElement(tag));
    name.textContent = name.title = label;
    bar.style.backgroundSize = `${cssPercent(probability)} 100%`;
    share.textContent = text ?? percent(probability);
    const row = document.createElement(canAsk && label !== target ? "button" : "div");
    row.append(name, ...(text ? [] : [bar]), share);
    if (target && against) row.className = { [target]: "for", [against]: "against" }[label] ?? "";
    if (canAsk && label !== target) {
      row.title = name.title = `Why ${target} and not ${label}?`;
      row.ariaPressed = String(label === against);
      row.addEventListener("click", () => ask(label));
    }
    return row;
  });
  const hint = canAsk && rows.length > 1 ? ` Click a bar: why ${target} and not that?` : "";
  const note = Object.assign(document.createElement("small"), { textContent: answers.note + hint });
  const focused = [...place.children].indexOf(/** @type {Element} */ (place.querySelector(":focus")));
  place.replaceChildren(...rows, note);
  if (focused >= 0) /** @type {HTMLElement} */ (place.children[focused]).focus();
  place.role = canAsk ? "group" : "img";
  place.ariaLabel = `${answers.bars.map(([label, probability, text]) => `${label} ${text ?? percent(probability)}`).join(", ")}. ${answers.note}`;
}

/** @param {Page} page */
function foldAndInvite(page) {
  page.find(".folded").removeAttribute("open");
  const brightest = Object.assign(document.createElement("span"), { className: "brightest", textContent: "Yellow counts most. " });
  page.find(".invite").replaceChildren(brightest, `${isTouch() ? "Tap" : "Move over"} the picture.`);
  page.over.addEventListener("pointerenter", () => (page.find(".invite").style.visibility = "hidden"), { once: true });
}
