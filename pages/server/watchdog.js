// Looks after the page where Streamlit gives up. Lives as long as the window, so that it outlives what it is mounted in.

const LOOK = 500; // ms between two looks
const PATIENCE = 4; // looks without a server before that is said
const SPAN = 600_000; // ms in which reloads count
const WAITS = [500, 4000, 20_000]; // ms before the first, second and third reload of such a span; there is no fourth
const STORED = "vit-reloads"; // in sessionStorage: when this tab was reloaded
const OFFLINE =
  "The app's server does not answer. The page goes on by itself when it is back. Runs that train go on without it.";
const HOPELESS = "This page stopped, and loading it again did not help. Open the app anew.";

/** @param {string} title */
const dialogs = (title) =>
  [...document.querySelectorAll('[data-testid="stDialog"]')].filter((one) => one.textContent?.trim().startsWith(title));

/** Streamlit's connection state; "" where its whole page is gone. */
function state() {
  /** @type {HTMLElement | null} */
  const app = document.querySelector('[data-testid="stApp"]');
  return app?.dataset.testConnectionState ?? "";
}

/** Whether the page takes no more messages: one was missed, did not fit, or took the page down. */
function dead() {
  return ["", "DISCONNECTED_FOREVER"].includes(state()) || dialogs("Bad message format").length > 0;
}

class Watchdog {
  constructor() {
    this.missed = 0; // looks without a server
    this.notice = Object.assign(document.createElement("div"), { id: "vit-offline", role: "status", hidden: true });
    this.notice.style.cssText =
      "position:fixed;inset:auto 0 1rem;margin:auto;width:fit-content;max-width:min(40rem,90vw);padding:.6rem 1rem;" +
      "z-index:1000000;border-radius:.4rem;background:#7a4b00;color:#fff;font:.9rem/1.4 system-ui,sans-serif";
    document.body.append(this.notice);
    this.timer = setInterval(() => this.look(), LOOK);
  }

  look() {
    if (dead()) return this.revive();
    this.missed = state() === "CONNECTED" ? 0 : this.missed + 1;
    this.say(this.missed < PATIENCE ? "" : OFFLINE);
    if (!this.missed) return;
    for (const one of dialogs("Connection error")) {
      // Streamlit asks for the internet there, in front of a page that can still be read.
      /** @type {HTMLElement | null} */ (one.querySelector("[aria-label=Close]"))?.click();
      this.notice.dataset.closed = String(1 + Number(this.notice.dataset.closed ?? 0));
    }
  }

  /** @param {string} words */
  say(words) {
    this.notice.hidden = !words;
    if (this.notice.textContent !== words) this.notice.textContent = words;
  }

  /** Reload, for the address holds what is shown; unless that did not help lately. */
  revive() {
    clearInterval(this.timer);
    try {
      const now = Date.now();
      const times = JSON.parse(sessionStorage[STORED] ?? "[]").filter((/** @type {number} */ time) => now - time < SPAN);
      if (times.length >= WAITS.length) return this.say(HOPELESS);
      setTimeout(() => {
        sessionStorage[STORED] = JSON.stringify([...times, Date.now()]);
        location.reload();
      }, WAITS[times.length]);
    } catch {
      this.say(HOPELESS); // without storage nothing would end a loop of reloads
    }
  }
}

export default () => {
  globalThis.__vitWatchdog ??= new Watchdog();
};
