// Durations of recent draws in ring buffers, for benchmarks.

const REMEMBERED = 512;

/** Draw times of one viewer. */
export class Stats {
  constructor() {
    this.draw = new Float64Array(REMEMBERED); // [ms]
    this.frame = new Float64Array(REMEMBERED); // [ms] from an event to the frame that shows it
    this.draws = 0;
    this.frames = 0;
    this.timeFrames = false;
    this.eventTime = 0; // time stamp of the event that the next draw responds to
  }

  /** @param {Event | undefined} event */
  noteEvent(event) {
    if (event && this.timeFrames) this.eventTime = event.timeStamp;
  }

  /**
   * Record a draw.
   *
   * @param {number} began
   */
  recordDraw(began) {
    this.draw[this.draws++ % REMEMBERED] = performance.now() - began;
    if (this.timeFrames && this.eventTime) this.timeFrame();
  }

  timeFrame() {
    const eventTime = this.eventTime;
    this.eventTime = 0;
    const channel = new MessageChannel(); // a message posted during a frame is handled after that frame is painted
    channel.port1.onmessage = () => {
      this.frame[this.frames++ % REMEMBERED] = performance.now() - eventTime;
    };
    channel.port2.postMessage(0);
  }
}
