// Creates one history entry per user action. Streamlit pushes an entry for every change of the query string, and when
// another page opens, it may first write that page's query string to the address of the previous page. This script runs
// before Streamlit's own, so that the query string that a page writes at first is no entry either.

const ACTS = ["pointerdown", "keydown", "change", "paste", "drop"];

class HistoryEntries {
  constructor() {
    this.acted = false; // whether the user did anything since the last entry
    this.previous = ""; // address before the last change of the query string
    this.pushed = false; // whether that change was pushed as an entry
    this.push = history.pushState.bind(history);
    history.pushState = (state, _, url) => this.write(state, new URL(url ?? "", location.href));
    for (const act of ACTS) addEventListener(act, () => (this.acted = true), { capture: true, passive: true });
    addEventListener("popstate", () => {
      this.acted = false;
      this.previous = "";
    });
  }

  /**
   * Replaces `history.pushState`: push an entry, or replace the current one.
   *
   * @param {unknown} state
   * @param {URL} next
   */
  write(state, next) {
    const opens = next.pathname !== location.pathname;
    // The last change of the query string belonged to the page that opens now.
    const early = opens && this.previous && !this.acted && next.search === location.search;
    if (early && this.pushed) history.replaceState(state, "", next);
    else {
      if (early) history.replaceState(state, "", this.previous);
      this.pushed = this.acted || opens;
      this.previous = opens ? "" : location.href;
      if (this.pushed) this.push(state, "", next);
      else history.replaceState(state, "", next);
    }
    if (opens) this.previous = "";
    this.acted = false;
  }
}

new HistoryEntries();
