// One step of the browser's Back for each thing that somebody does. Streamlit makes a step of every change of a link,
// and where another page is opened, it may first write that page's link into the address of the one that is left.
// Runs before Streamlit's own programs, so that what a page writes into an empty link is no step either.

const ACTS = ["pointerdown", "keydown", "change", "paste", "drop"];

class Steps {
  constructor() {
    this.acted = false; // since the last step
    this.left = ""; // the address before the last change of a link
    this.pushed = false; // that change was a step
    this.push = history.pushState.bind(history);
    history.pushState = (state, _, url) => this.step(state, new URL(url ?? "", location.href));
    for (const act of ACTS) addEventListener(act, () => (this.acted = true), { capture: true, passive: true });
    addEventListener("popstate", () => {
      this.acted = false;
      this.left = "";
    });
  }

  /**
   * @param {unknown} state
   * @param {URL} next
   */
  step(state, next) {
    const opens = next.pathname !== location.pathname;
    // The last change of a link was that of the page that opens now.
    const early = opens && this.left && !this.acted && next.search === location.search;
    if (early && this.pushed) history.replaceState(state, "", next);
    else {
      if (early) history.replaceState(state, "", this.left);
      this.pushed = this.acted || opens;
      this.left = opens ? "" : location.href;
      if (this.pushed) this.push(state, "", next);
      else history.replaceState(state, "", next);
    }
    if (opens) this.left = "";
    this.acted = false;
  }
}

new Steps();
