// How long draws take, for benchmarks: in rings of the last ones.

const REMEMBERED = 512;

/** The draws of one viewer. */
export class Stats {
  constructor() {
    this.draw = new Float64Array(REMEMBERED); // [ms]
    this.frame = new Float64Array(REMEMBERED); // from an event to the frame that shows it [ms]
    this.draws = 0;
    this.frames = 0;
    this.timeFrames = false;
    this.eventTime = 0; // when the event happened that the next draw answers
  }

  /** @param {Event | undefined} event */
  ask(event) {
    if (event && this.timeFrames) this.eventTime = event.timeStamp;
  }

  /**
   * A draw is done.
   *
   * @param {number} began
   */
  drew(began) {
    this.draw[this.draws++ % REMEMBERED] = performance.now() - began;
    if (this.timeFrames && this.eventTime) this.timeFrame();
  }

  timeFrame() {
    const eventTime = this.eventTime;
    this.eventTime = 0;
    const channel = new MessageChannel(); // its message runs after the frame that this draw belongs to
    channel.port1.onmessage = () => {
      this.frame[this.frames++ % REMEMBERED] = performance.now() - eventTime;
    };
    channel.port2.postMessage(0);
  }
}
