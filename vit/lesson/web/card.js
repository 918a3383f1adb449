// The card of a step: its explanation, task, state, and navigation.

import { STEPS } from "./course.js";
import { element, make } from "./elements.js";
import { translate } from "../../view/web/words.js";

/** @import { Course } from "./course.js" */

/** @type {ScrollBehavior} */
const SCROLL = matchMedia("(prefers-reduced-motion: reduce)").matches ? "instant" : "smooth";

/** The card beside the picture. */
export class Card {
  /**
   * @param {Course} course
   * @param {Record<string, string | number>} facts values for the placeholders of texts
   * @param {() => void} onStepChange called after a change of step
   */
  constructor(course, facts, onStepChange) {
    this.course = course;
    this.onStepChange = onStepChange;
    this.facts = facts;
    this.dots = STEPS.map(({ name }, number) => {
      const label = translate("step of", { number: number + 1, count: STEPS.length, title: translate(`${name}.title`) });
      const dot = make("button", { type: "button", title: label });
      dot.setAttribute("aria-label", label);
      dot.addEventListener("click", () => this.go(number));
      return dot;
    });
    element(".steps").replaceChildren(...this.dots);
    element(".card .back").addEventListener("click", () => this.go(course.number - 1));
    element(".card .next").addEventListener("click", () => this.go(course.number + 1));
  }

  /** @param {number} number */
  go(number) {
    this.course.go(number);
    this.onStepChange();
    element("#step-title").focus({ preventScroll: true });
    const { where, from } = this.course.step;
    element(from ?? where).scrollIntoView({ block: from ? "start" : "nearest", behavior: SCROLL });
  }

  /** Draw the current step. */
  draw() {
    const { course, dots, facts } = this;
    const { name } = course.step, { number } = course;
    const done = course.done.has(number), last = number === STEPS.length - 1;
    element("#step-title").textContent = `${number + 1}. ${translate(`${name}.title`)}`;
    element(".card .text").textContent = translate(`${name}.text`, facts);
    element(".card .task span:last-child").textContent = translate(`${name}.task`, facts);
    element(".card").classList.toggle("is-done", done);
    const praise = translate(last ? "all done" : "done");
    element(".card .done").dataset.room = praise; // CSS reserves this space, so that the layout does not shift
    element(".card .done span").textContent = done ? praise : "";
    for (const one of document.querySelectorAll(".wanted")) one.classList.remove("wanted");
    if (!done) element(course.step.where)?.classList.add("wanted");
    /** @type {HTMLButtonElement} */ (element(".card .back")).disabled = number === 0;
    element(".card .next").hidden = last;
    dots.forEach((dot, each) => {
      dot.className = course.done.has(each) ? "completed" : "";
      if (each === number) dot.setAttribute("aria-current", "step");
      else dot.removeAttribute("aria-current");
    });
    STEPS.forEach(({ name: known }, each) => document.body.classList.toggle(`reached-${known}`, each <= course.furthest));
  }
}
