/** Time as an argument, so that tests need not wait. */

/**
 * @typedef {object} Clock
 * @property {() => number} now milliseconds, rising
 * @property {(action: () => void, ms: number) => any} after
 * @property {(timer: any) => void} cancel
 */

/** @type {Clock} */
export const realClock = {
  now: () => performance.now(),
  // A delay of zero means: after what arrived together has been handled.
  after: (action, ms) => (ms <= 0 ? setImmediate(action) : setTimeout(action, ms)),
  cancel: (timer) => {
    if (timer?.constructor.name === 'Immediate') clearImmediate(timer);
    else clearTimeout(timer);
  },
};

/** @param {Clock} clock @param {number} ms */
export const sleep = (clock, ms) => new Promise((resolve) => clock.after(() => resolve(undefined), ms));

/** A clock that jumps from timer to timer. @implements {Clock} */
export class VirtualClock {
  constructor() {
    this.time = 0;
    this.count = 0;
    this.timers = new Map();
  }

  now() {
    return this.time;
  }

  after(action, ms) {
    this.count += 1;
    this.timers.set(this.count, { at: this.time + Math.max(0, ms), action });
    return this.count;
  }

  cancel(timer) {
    this.timers.delete(timer);
  }

  /** Run the next timer, if there is one. Timers of the same time run in the order in which they were set. */
  step() {
    let first = null;
    for (const [id, timer] of this.timers) if (!first || timer.at < first.at) first = { id, ...timer };
    if (!first) return false;
    this.timers.delete(first.id);
    this.time = Math.max(this.time, first.at);
    first.action();
    return true;
  }

  /** Run timers, and the promises between them, until `isDone` or the time is up. @returns {Promise<boolean>} */
  async runUntil(isDone, ms) {
    const end = this.time + ms;
    while (!isDone() && this.time < end) {
      if (!this.step()) this.time += 1;
      await new Promise((resolve) => setImmediate(resolve));
    }
    return isDone();
  }
}
