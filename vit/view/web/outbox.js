// Tells Python what was chosen, once it is painted and keys have settled.

/** @import { Selection } from "./types" */

/** What one viewer has to tell. */
export class Outbox {
  constructor() {
    /** @type {(message: Selection & { revision: number | null }) => void} */
    this.send = () => {};
    this.sent = ""; // the last selection, as JSON
    this.pending = false;
    this.timer = 0;
  }

  /**
   * Tell a selection, as it will be by then.
   *
   * @param {() => { selection: Selection, revision: number | null }} read
   * @param {number} after [ms]; of what is posted within that time, only the last is told
   */
  post(read, after) {
    clearTimeout(this.timer);
    this.pending = true;
    const tell = () => requestAnimationFrame(() => setTimeout(() => this.tell(read())));
    if (after) this.timer = setTimeout(tell, after);
    else tell();
  }

  /** @param {{ selection: Selection, revision: number | null }} message */
  tell({ selection, revision }) {
    this.pending = false;
    const text = JSON.stringify(selection);
    if (text !== this.sent) this.send({ ...selection, revision });
    this.sent = text;
  }

  /** Tell nothing more that waits for keys to settle. */
  stop() {
    clearTimeout(this.timer);
  }
}
