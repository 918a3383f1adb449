// One step of the browser's Back for each thing that somebody does. Streamlit makes a step of every change of a link:
// opening another page was two, of which the first had that page's link at the address of the one that was left.

const ACTS = ["pointerdown", "keydown", "change", "paste", "drop"];

class Steps {
  constructor() {
    this.acted = true; // since the last step
    const push = history.pushState.bind(history);
    history.pushState = (...step) => {
      if (this.acted) push(...step);
      else history.replaceState(...step);
      this.acted = false;
    };
    for (const act of ACTS) addEventListener(act, () => (this.acted = true), { capture: true, passive: true });
    addEventListener("popstate", () => (this.acted = false));
  }
}

export default () => {
  globalThis.__vitSteps ??= new Steps();
};
