// Handles failures of Streamlit's connection and front end. Lives as long as the window, not only while it is mounted.

const INTERVAL = 500; // [ms] between checks
const PATIENCE = 4; // checks without a server before the notice OFFLINE
const SPAN = 600_000; // [ms] within which reloads are counted
const WAITS = [500, 4000, 20_000]; // [ms] before the first, second and third reload within SPAN; there is no fourth
const STORED = "vit-reloads"; // key in sessionStorage: times of this tab's reloads
const OFFLINE =
  "The app's server does not answer. The page goes on by itself when it is back. Runs that train go on without it.";
const RELOAD_FAILED = "This page stopped, and loading it again did not help. Open the app anew.";

/** @param {string} title */
const dialogs = (title) =>
  [...document.querySelectorAll('[data-testid="stDialog"]')].filter((one) => one.textContent?.trim().startsWith(title));

/** Return Streamlit's connection state; "" if its app element is gone. */
function state() {
  /** @type {HTMLElement | null} */
  const app = document.querySelector('[data-testid="stApp"]');
  return app?.dataset.testConnectionState ?? "";
}

/** Whether the page cannot process messages any more: one was lost or malformed, or crashed the page. */
function isBroken() {
  return ["", "DISCONNECTED_FOREVER"].includes(state()) || dialogs("Bad message format").length > 0;
}

class Watchdog {
  constructor() {
    this.missed = 0; // consecutive checks without a server
    this.notice = Object.assign(document.createElement("div"), { id: "vit-offline", role: "status", hidden: true });
    this.notice.style.cssText =
      "position:fixed;inset:auto 0 1rem;margin:auto;width:fit-content;max-width:min(40rem,90vw);padding:.6rem 1rem;" +
      "z-index:1000000;border-radius:.4rem;background:#7a4b00;color:#fff;font:.9rem/1.4 system-ui,sans-serif";
    document.body.append(this.notice);
    this.timer = setInterval(() => this.check(), INTERVAL);
  }

  check() {
    if (isBroken()) return this.reload();
    this.missed = state() === "CONNECTED" ? 0 : this.missed + 1;
    this.setNotice(this.missed < PATIENCE ? "" : OFFLINE);
    if (!this.missed) return;
    for (const one of dialogs("Connection error")) {
      // Streamlit's dialog about the internet connection covers a page that is still readable.
      /** @type {HTMLElement | null} */ (one.querySelector("[aria-label=Close]"))?.click();
      this.notice.dataset.closed = String(1 + Number(this.notice.dataset.closed ?? 0));
    }
  }

  /** @param {string} words */
  setNotice(words) {
    this.notice.hidden = !words;
    if (this.notice.textContent !== words) this.notice.textContent = words;
  }

  /** Reload the page, whose state is in the address; give up after as many reloads as WAITS has. */
  reload() {
    clearInterval(this.timer);
    try {
      const now = Date.now();
      const times = JSON.parse(sessionStorage[STORED] ?? "[]").filter((/** @type {number} */ time) => now - time < SPAN);
      if (times.length >= WAITS.length) return this.setNotice(RELOAD_FAILED);
      setTimeout(() => {
        sessionStorage[STORED] = JSON.stringify([...times, Date.now()]);
        location.reload();
      }, WAITS[times.length]);
    } catch {
      this.setNotice(RELOAD_FAILED); // without storage, reloads could not be counted and might loop
    }
  }
}

export default () => {
  globalThis.__vitWatchdog ??= new Watchdog();
};
