// Sends selections to Python, after they are painted and the user has stopped pressing keys.

/** @import { Selection } from "./types" */

/** The outgoing messages of one viewer. */
export class Outbox {
  constructor() {
    /** @type {(message: Selection & { revision: number | null }) => void} */
    this.send = () => {};
    this.sent = ""; // the last selection, as JSON
    this.pending = false;
    this.timer = 0;
  }

  /**
   * Schedule a message. The selection is read when the message is sent.
   *
   * @param {() => { selection: Selection, revision: number | null }} read
   * @param {number} after [ms] to wait; a later call within that time replaces this one
   */
  post(read, after) {
    clearTimeout(this.timer);
    this.pending = true;
    // A timeout set in a frame callback runs after that frame is painted.
    const deliver = () => requestAnimationFrame(() => setTimeout(() => this.deliver(read())));
    if (after) this.timer = setTimeout(deliver, after);
    else deliver();
  }

  /** @param {{ selection: Selection, revision: number | null }} message */
  deliver({ selection, revision }) {
    this.pending = false;
    const text = JSON.stringify(selection);
    if (text !== this.sent) this.send({ ...selection, revision });
    this.sent = text;
  }

  /** Cancel a message that is waiting for its delay. */
  stop() {
    clearTimeout(this.timer);
  }
}
