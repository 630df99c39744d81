/**
 * The two halves of reliable delivery (section 8), without I/O and without a clock: `now` is an argument, in
 * milliseconds, and what is to be sent is returned.
 */

import { numbersIn, toRanges } from './ranges.mjs';

/**
 * @typedef {import('./ranges.mjs').Range} Range
 * @typedef {'durable' | 'supersedable' | 'request'} Kind
 * @typedef {{received: number, ranges?: Range[], applied: number, durable: number, limit: number, lost?: Range[]}} Watermarks
 */

const AHEAD_MAX = 8192; // numbers ahead of the lowest missing one [SEQ-3]
const HELD_MAX = 1024;
const HELD_BYTES_MAX = 1 << 20;
const DIGESTS_KEPT = 4096;
const NACK_BYTES_MAX = 256 << 10;
const ASKS_MAX = 16;
const GAP_MS_MAX = 10_000;
const PROBE_MS_MAX = 5_000;

/** A smoothed round trip, shared by both halves. */
export class RoundTrip {
  constructor() {
    this.ms = 50;
    this.isKnown = false;
  }

  /** @param {number} ms */
  sample(ms) {
    this.ms = this.isKnown ? 0.875 * this.ms + 0.125 * ms : ms;
    this.isKnown = true;
  }
}

export class SendHalf {
  /**
   * @param {{windowEvents: number, windowBytes: number, isJournaled?: boolean, roundTrip?: RoundTrip}} options
   *   `isJournaled`: WELCOME says `durability: full`, so durable frames wait for the journal [ACK-3]
   */
  constructor({ windowEvents, windowBytes, isJournaled = false, roundTrip = new RoundTrip() }) {
    this.windowEvents = windowEvents;
    this.windowBytes = windowBytes;
    this.isJournaled = isJournaled;
    this.roundTrip = roundTrip;
    this.next = 1;
    this.received = 1;
    this.applied = 1;
    this.durable = 1;
    this.limit = 1 + windowEvents; // until the first ACK tells
    this.arrived = new Set(); // numbers above `received` that the other side has
    this.ring = new Map(); // what may have to be sent again, by rising number
    this.underWay = new Map(); // sizes of the frames that are not known to be received
    this.underWayBytes = 0;
    this.newestOfKey = new Map();
    this.probeAt = Infinity;
    this.probeMs = 0;
    this.retransmitted = 0;
  }

  /** Whether a new frame of this size may leave now [SEQ-7, ACK-5]. */
  hasRoom(bytes) {
    if (this.next >= this.limit || this.underWay.size >= this.windowEvents) return false;
    // A ring that only waits for the journal must stay bounded too.
    if (this.ring.size >= 4 * this.windowEvents) return false;
    return this.underWay.size === 0 || this.underWayBytes + bytes <= this.windowBytes;
  }

  /**
   * Note that the frame with the number `next` is handed to the WebSocket now.
   *
   * @param {{data: unknown, bytes: number, kind: Kind, key?: string, message?: unknown}} frame
   */
  record({ data, bytes, kind, key, message }, now) {
    const number = this.next;
    this.next += 1;
    if (key !== undefined) {
      // A newer value of the key makes the older frame worthless: it will be skipped, not sent again.
      const older = this.newestOfKey.get(key);
      if (older !== undefined && !this.isReceived(older)) this.ring.delete(older);
      this.newestOfKey.set(key, number);
    }
    this.ring.set(number, { data, bytes, kind, message, sentAt: now, answeredAt: -Infinity, isRepeated: false });
    this.underWay.set(number, bytes);
    this.underWayBytes += bytes;
    this.restartProbe(now);
  }

  isReceived(number) {
    return number < this.received || this.arrived.has(number);
  }

  /**
   * @param {Watermarks} ack
   * @returns {boolean} false when it speaks of numbers that were never sent [ACK-4]
   */
  onAck(ack, now) {
    const ranges = ack.ranges ?? [];
    const stops = [...ranges, ...(ack.lost ?? [])].map((range) => range[1]);
    if (Math.max(ack.received, ack.applied, ack.durable, ...stops) > this.next) return false;
    const before = this.received + this.applied + this.durable + this.arrived.size;
    this.markReceived(ack.received, ranges, now);
    this.applied = Math.max(this.applied, ack.applied);
    this.durable = Math.max(this.durable, ack.durable);
    this.limit = Math.max(this.limit, ack.limit);
    this.forget();
    // An ACK without progress does not shorten the pauses between probes.
    if (this.received + this.applied + this.durable + this.arrived.size > before) this.restartProbe(now);
    else this.probeAt = this.ring.size > 0 ? now + this.probeMs : Infinity;
    return true;
  }

  /**
   * What the other side has given up of what is kept here: it is told before the watermarks of the same ACK let it be
   * forgotten, and handed out once [ACK-6].
   *
   * @param {Range[]} ranges
   * @returns {unknown[]} the messages
   */
  takeLost(ranges) {
    const messages = [];
    const [oldest = this.next] = this.ring.keys();
    for (const number of numbersIn(ranges, oldest, this.next)) {
      const frame = this.ring.get(number);
      if (!frame || frame.isGivenUp) continue;
      frame.isGivenUp = true;
      messages.push(frame.message);
    }
    return messages;
  }

  markReceived(received, ranges, now) {
    let sample = null;
    const note = (number) => {
      if (this.isReceived(number)) return;
      const frame = this.ring.get(number);
      if (frame && !frame.isRepeated) sample = now - frame.sentAt;
      if (frame?.kind === 'supersedable') this.ring.delete(number);
      this.underWayBytes -= this.underWay.get(number) ?? 0;
      this.underWay.delete(number);
      this.arrived.add(number);
    };
    for (let number = this.received; number < received; number += 1) note(number);
    for (const number of numbersIn(ranges, this.received, this.next)) note(number);
    if (sample !== null) this.roundTrip.sample(sample);
    while (this.received < received || this.arrived.has(this.received)) {
      this.arrived.delete(this.received);
      this.received += 1;
    }
  }

  forget() {
    const safe = this.isJournaled ? this.durable : this.applied;
    for (const [number, frame] of this.ring) {
      if (number >= this.applied) break; // `durable` is never above it
      if (number < (frame.kind === 'durable' ? safe : this.applied)) this.ring.delete(number);
    }
  }

  /**
   * Answer a NACK [NAK-3].
   *
   * @param {Range[]} ranges
   * @returns {{frames: unknown[], skip: Range[], heartbeat: boolean}}
   */
  onNack(ranges, now) {
    const pause = Math.max(10, this.roundTrip.ms);
    const frames = [];
    const gone = [];
    let bytes = 0;
    for (const number of new Set(numbersIn(ranges, this.received, this.next))) {
      const frame = this.ring.get(number);
      if (this.isReceived(number)) continue;
      if (!frame) gone.push(number);
      else if (now - frame.answeredAt >= pause && bytes + frame.bytes <= NACK_BYTES_MAX) {
        bytes += frame.bytes;
        frames.push(this.repeat(frame, now));
      }
    }
    this.restartProbe(now);
    return { frames, skip: toRanges(gone), heartbeat: ranges.some((range) => range[1] > this.next) };
  }

  repeat(frame, now) {
    frame.answeredAt = now;
    frame.isRepeated = true;
    this.retransmitted += 1;
    return frame.data;
  }

  /**
   * A resumed connection: everything that has not arrived, as it was, and what can only be skipped [RSM-6].
   *
   * @param {Range[]} ranges
   * @returns {{frames: unknown[], skip: Range[]} | null} null when `expects` is a number that was never sent
   */
  onResume(expects, ranges, now) {
    if (expects > this.next) return null;
    this.markReceived(expects, ranges, now);
    const frames = [];
    const gone = [];
    for (let number = this.received; number < this.next; number += 1) {
      if (this.isReceived(number)) continue;
      const frame = this.ring.get(number);
      if (frame) frames.push(this.repeat(frame, now));
      else gone.push(number);
    }
    this.restartProbe(now);
    return { frames, skip: toRanges(gone) };
  }

  /**
   * When a HEARTBEAT is due because no answer comes [HBT-1]. Frames that have arrived and are not yet applied or
   * durable count too: the ACK that would tell so may have been lost.
   */
  restartProbe(now) {
    this.probeMs = Math.max(20, 2 * this.roundTrip.ms);
    this.probeAt = this.ring.size > 0 || this.underWay.size > 0 ? now + this.probeMs : Infinity;
  }

  /** True once for each probe that is due. */
  takeProbe(now) {
    if (now < this.probeAt) return false;
    this.probeMs = Math.min(2 * this.probeMs, PROBE_MS_MAX);
    this.probeAt = now + this.probeMs;
    return true;
  }
}

export class ReceiveHalf {
  /** @param {{windowEvents: number, roundTrip?: RoundTrip, random?: () => number}} options */
  constructor({ windowEvents, roundTrip = new RoundTrip(), random = Math.random }) {
    this.windowEvents = windowEvents;
    this.roundTrip = roundTrip;
    this.random = random;
    this.expected = 1; // the lowest number that has not been received
    this.known = 1; // all numbers below it are known to have been sent
    this.above = new Map(); // received numbers above `expected`: what waits to be applied, or null
    this.held = 0;
    this.heldBytes = 0;
    this.missing = new Map(); // {asks, since, at} of each missing number
    this.digests = new Map();
    this.appliedOfKey = new Map();
    this.corruptAskedAt = -Infinity;
    this.counts = { duplicates: 0, dropped: 0, skipped: 0 };
  }

  has(number) {
    return number < this.expected || this.above.has(number);
  }

  /**
   * A numbered frame with a good digest.
   *
   * @param {{number: number, digest: string, bytes: number, key?: string, item: unknown}} frame
   *   `key` only for a supersedable event [SEQ-4]
   * @returns {{verdict: 'new' | 'duplicate' | 'dropped' | 'conflict' | 'beyond', ready: unknown[]}}
   */
  onFrame({ number, digest, bytes, key, item }, now) {
    if (number >= this.expected + AHEAD_MAX) return { verdict: 'beyond', ready: [] };
    this.learn(number + 1, now);
    if (this.has(number)) {
      this.counts.duplicates += 1;
      const before = this.digests.get(number);
      return { verdict: before !== undefined && before !== digest ? 'conflict' : 'duplicate', ready: [] };
    }
    const ready = [];
    if (key !== undefined) {
      if (number > (this.appliedOfKey.get(key) ?? 0)) {
        this.appliedOfKey.set(key, number);
        ready.push(item);
      }
      this.accept(number, null);
    } else {
      const isAhead = number > this.expected;
      if (isAhead && (this.held >= HELD_MAX || this.heldBytes + bytes > HELD_BYTES_MAX)) {
        this.counts.dropped += 1;
        return { verdict: 'dropped', ready: [] };
      }
      this.held += 1;
      this.heldBytes += bytes;
      this.accept(number, { item, bytes });
    }
    this.digests.set(number, digest);
    if (this.digests.size > 2 * DIGESTS_KEPT) this.trimDigests();
    return { verdict: 'new', ready: [...ready, ...this.advance()] };
  }

  accept(number, held) {
    this.missing.delete(number);
    this.above.set(number, held);
  }

  trimDigests() {
    let left = this.digests.size - DIGESTS_KEPT;
    for (const number of this.digests.keys()) {
      if (left <= 0) break;
      this.digests.delete(number);
      left -= 1;
    }
  }

  /** Move over everything that is there without a hole. */
  advance() {
    const ready = [];
    while (this.above.has(this.expected)) {
      const held = this.above.get(this.expected);
      this.above.delete(this.expected);
      this.expected += 1;
      if (!held) continue;
      this.held -= 1;
      this.heldBytes -= held.bytes;
      ready.push(held.item);
    }
    return ready;
  }

  /** All numbers below `next` have been sent: what has not arrived is missing [NAK-1, HBT-2]. */
  learn(next, now) {
    const stop = Math.min(next, this.expected + AHEAD_MAX);
    for (let number = Math.max(this.known, this.expected); number < stop; number += 1) {
      if (!this.has(number)) this.missing.set(number, { asks: 0, since: now, at: now });
    }
    this.known = Math.max(this.known, stop);
  }

  /**
   * @param {Range[]} ranges
   * @returns {unknown[] | null} what has become applicable; null when the numbers cannot have been sent [SKP-3]
   */
  onSkip(ranges, now) {
    const stop = Math.max(...ranges.map((range) => range[1]));
    if (stop > this.expected + AHEAD_MAX) return null;
    this.learn(stop, now);
    for (const number of numbersIn(ranges, this.expected, stop)) {
      if (this.has(number)) continue;
      this.counts.skipped += 1;
      this.accept(number, null);
    }
    return this.advance();
  }

  /** A new connection begins: what was missing is on its way again, and missing only once something behind it has come [RSM-10]. */
  restart() {
    this.missing.clear();
    this.known = this.expected;
  }

  /**
   * What is to be asked for now [NAK-2], and whether a gap has to be given up [NAK-4].
   *
   * @returns {{ranges: Range[], isLost: boolean}}
   */
  takeNack(now) {
    const due = [];
    let isLost = false;
    for (const [number, gap] of this.missing) {
      if (now < gap.at) continue;
      if (gap.asks >= ASKS_MAX || now - gap.since >= GAP_MS_MAX) {
        isLost = true;
        continue;
      }
      const wait = Math.min(2000, Math.max(50, 2 * this.roundTrip.ms) * 1.5 ** gap.asks);
      gap.asks += 1;
      gap.at = now + wait * (1 + 0.2 * this.random());
      due.push(number);
    }
    due.sort((left, right) => left - right);
    return { ranges: toRanges(due), isLost };
  }

  /** When `takeNack` has something to say. */
  nackAt() {
    let at = Infinity;
    for (const gap of this.missing.values()) at = Math.min(at, gap.at);
    return at;
  }

  /** A corrupt frame came: the evidence of a loss, unless a gap is open already [NAK-5]. @returns {Range[]} */
  onCorrupt(now) {
    if (this.missing.size > 0 || now - this.corruptAskedAt < this.roundTrip.ms) return [];
    this.corruptAskedAt = now;
    return [[this.expected, this.expected + 1]];
  }

  /** @returns {Watermarks} */
  watermarks() {
    const ranges = toRanges([...this.above.keys()].sort((left, right) => left - right)).slice(0, 32);
    return {
      received: this.expected,
      ranges: ranges.length > 0 ? ranges : undefined,
      // Everything is applied in the moment in which its turn comes, and nothing is journalled here.
      applied: this.expected,
      durable: this.expected,
      limit: this.expected + this.windowEvents,
    };
  }
}
