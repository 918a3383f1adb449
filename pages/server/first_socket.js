// Shows a notice when the browser cannot open a web socket to the server. Streamlit retries for ever and shows a grey
// page meanwhile. This script is part of the HTML, because components arrive through that socket. `watchdog.js` takes
// over once it has loaded.

const LOOK = 500; // ms between two looks
const PATIENCE = 20; // looks without a socket before that is said
const STEADY = 4; // looks that a socket stays open, which some proxies close at once
const SILENCE = 60; // looks before it is said that nothing comes through an open one
const BLOCKED =
  "No web socket reaches the app's server, so there is nothing to show. A proxy between this browser and the app has to " +
  "let web sockets through, and to pass on the browser's own Host: see docs/host.md.";
const SILENT =
  "The app's server has not answered yet. It is busy, or a proxy holds back what it sends through the web socket: " +
  "see docs/host.md.";

class FirstSocket {
  constructor() {
    this.looks = 0; // since Streamlit's programs are here
    this.open = 0; // looks in a row at which the socket was open
    this.notice = Object.assign(document.createElement("div"), { id: "vit-socket", role: "alert", hidden: true });
    this.notice.style.cssText =
      "position:fixed;inset:auto 0 1rem;margin:auto;width:fit-content;max-width:min(40rem,90vw);padding:.6rem 1rem;" +
      "z-index:1000000;border-radius:.4rem;background:#7a4b00;color:#fff;font:.9rem/1.4 system-ui,sans-serif";
    this.timer = setInterval(() => this.look(), LOOK);
  }

  look() {
    if ("__vitWatchdog" in globalThis) {
      clearInterval(this.timer);
      this.notice.remove();
      return;
    }
    /** @type {HTMLElement | null} */
    const app = document.querySelector('[data-testid="stApp"]');
    if (!app) return;
    this.looks += 1;
    this.open = app.dataset.testConnectionState === "CONNECTED" ? this.open + 1 : 0;
    if (this.open >= STEADY) this.say(this.looks < SILENCE ? "" : SILENT);
    else if (this.looks >= PATIENCE) this.say(BLOCKED);
  }

  /** @param {string} words */
  say(words) {
    this.notice.hidden = !words;
    if (this.notice.textContent === words) return;
    this.notice.textContent = words;
    document.body.append(this.notice);
  }
}

new FirstSocket();
