// Shows a notice when the browser cannot open a WebSocket to the server. Streamlit itself retries forever behind a grey
// page. This script is part of the HTML, because components are delivered through that socket. `watchdog.js` takes over
// once it has loaded.

const INTERVAL = 500; // [ms] between checks
const PATIENCE = 20; // checks without a socket before the notice BLOCKED
const STEADY = 4; // checks that a socket must stay open, because some proxies close it at once
const SILENT_CHECKS = 60; // checks before the notice NO_ANSWER, if nothing arrives through an open socket
const BLOCKED =
  "No web socket reaches the app's server, so there is nothing to show. A proxy between this browser and the app has to " +
  "let web sockets through, and to pass on the browser's own Host: see docs/host.md.";
const NO_ANSWER =
  "The app's server has not answered yet. It is busy, or a proxy holds back what it sends through the web socket: " +
  "see docs/host.md.";

class FirstSocket {
  constructor() {
    this.checks = 0; // checks since Streamlit's scripts have loaded
    this.openChecks = 0; // consecutive checks with an open socket
    this.notice = Object.assign(document.createElement("div"), { id: "vit-socket", role: "alert", hidden: true });
    this.notice.style.cssText =
      "position:fixed;inset:auto 0 1rem;margin:auto;width:fit-content;max-width:min(40rem,90vw);padding:.6rem 1rem;" +
      "z-index:1000000;border-radius:.4rem;background:#7a4b00;color:#fff;font:.9rem/1.4 system-ui,sans-serif";
    this.timer = setInterval(() => this.check(), INTERVAL);
  }

  check() {
    if ("__vitWatchdog" in globalThis) {
      clearInterval(this.timer);
      this.notice.remove();
      return;
    }
    /** @type {HTMLElement | null} */
    const app = document.querySelector('[data-testid="stApp"]');
    if (!app) return;
    this.checks += 1;
    this.openChecks = app.dataset.testConnectionState === "CONNECTED" ? this.openChecks + 1 : 0;
    if (this.openChecks >= STEADY) this.setNotice(this.checks < SILENT_CHECKS ? "" : NO_ANSWER);
    else if (this.checks >= PATIENCE) this.setNotice(BLOCKED);
  }

  /** @param {string} words */
  setNotice(words) {
    this.notice.hidden = !words;
    if (this.notice.textContent === words) return;
    this.notice.textContent = words;
    document.body.append(this.notice);
  }
}

new FirstSocket();
