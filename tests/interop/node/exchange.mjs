/**
 * Both halves of delivery at one end of a session: what is waiting to be sent, what comes in, and when something is
 * due. It outlives connections; `attach` and `detach` tell it about them.
 */

import { ReceiveHalf, RoundTrip, SendHalf } from './delivery.mjs';
import { dataBytes, encodeBody, encodeFrame } from './frames.mjs';
import { areRanges, groupsOf } from './ranges.mjs';

/**
 * @typedef {object} ExchangeOptions
 * @property {import('./frames.mjs').Encoding} encoding
 * @property {import('./frames.mjs').Digest} digest
 * @property {Record<string, number>} limits those of WELCOME
 * @property {boolean} [isJournaled]
 * @property {import('./clock.mjs').Clock} clock
 * @property {() => number} random
 * @property {(data: any) => void} transmit
 * @property {(message: any, head: {sequence: number, stream: number}) => void} deliver in order, each once
 * @property {(code: string, close: number) => void} fail the connection cannot go on
 * @property {(message: any) => string | undefined} [keyOf] the key of a supersedable event that comes in
 * @property {() => void} [onDrained]
 * @property {(message: any) => void} [onGivenUp] the other side will never have a message that was sent
 * @property {RoundTrip} [roundTrip]
 */

/**
 * @typedef {object} Item
 * @property {Record<string, any>} message
 * @property {import('./delivery.mjs').Kind} kind
 * @property {string} [key]
 * @property {number} [stream]
 * @property {number} queuedAt
 * @property {any} [body] once encoded, it stays as it is [EVT-1]
 */

const RANGES_MAX = 64; // in one NACK or SKIP

export class Exchange {
  /** @param {ExchangeOptions} options */
  constructor(options) {
    this.options = options;
    const roundTrip = options.roundTrip ?? new RoundTrip();
    const { window_events: windowEvents, window_bytes: windowBytes } = options.limits;
    this.sender = new SendHalf({ windowEvents, windowBytes, isJournaled: options.isJournaled, roundTrip });
    this.receiver = new ReceiveHalf({ windowEvents, roundTrip, random: options.random });
    /** @type {Map<number, Item>} in the order in which they leave */
    this.outbox = new Map();
    this.outboxKeys = new Map();
    this.lastItem = 0;
    this.isAttached = false;
    this.isHeldBack = false; // GOAWAY: nothing new
    this.ackTimer = null;
    this.counts = { nacksSent: 0, nacksReceived: 0, skipsSent: 0, errorsFatal: 0, oversize: 0 };
  }

  get now() {
    return this.options.clock.now();
  }

  // ---- sending

  /**
   * Queue a message. Of a key only the newest unsent value stays, and it moves to the end, so that edits before it
   * leave before it [COA-1, COA-2].
   *
   * @param {Record<string, any>} message
   * @param {{kind: import('./delivery.mjs').Kind, key?: string, stream?: number}} about
   */
  enqueue(message, { kind, key, stream }) {
    this.lastItem += 1;
    if (key !== undefined) {
      this.outbox.delete(this.outboxKeys.get(key));
      this.outboxKeys.set(key, this.lastItem);
    }
    const item = { message, kind, key, stream, queuedAt: this.now };
    if (kind !== 'request' && !this.isAttached) item.message = { ...message, is_offline: true };
    this.outbox.set(this.lastItem, item);
    this.flush();
  }

  /**
   * Take back unsent messages.
   *
   * @param {(item: Item) => boolean} isUnwanted
   * @returns {Item[]} what was taken back
   */
  withdraw(isUnwanted) {
    const taken = [];
    for (const [id, item] of this.outbox) {
      if (!isUnwanted(item)) continue;
      this.outbox.delete(id);
      taken.push(item);
    }
    return taken;
  }

  /** Send what may be sent. */
  flush() {
    if (!this.isAttached || this.isHeldBack) return;
    for (const [id, item] of this.outbox) {
      if (!this.sendItem(item)) return;
      this.outbox.delete(id);
      if (this.outboxKeys.get(item.key) === id) this.outboxKeys.delete(item.key);
    }
    this.options.onDrained?.();
  }

  /** @param {Item} item @returns {boolean} false when there is no room for it now */
  sendItem(item) {
    const { encoding, digest, limits, transmit } = this.options;
    const waited = Math.floor(this.now - item.queuedAt);
    const isEvent = item.kind !== 'request';
    item.body ??= encodeBody(encoding, isEvent && waited > 0 ? { ...item.message, queued_ms: waited } : item.message);
    const about = dataBytes(item.body) + 64;
    if (!this.sender.hasRoom(about)) return false;
    const data = encodeFrame(digest, { sequence: this.sender.next, stream: item.stream }, item.body);
    const bytes = dataBytes(data);
    if (bytes > limits.frame_bytes) {
      this.counts.oversize += 1; // the callers cut texts and edits so that this does not happen
      return true;
    }
    this.sender.record({ data, bytes, kind: item.kind, key: item.key, message: item.message }, this.now);
    transmit(data);
    return true;
  }

  /** Send an unnumbered message. */
  tell(message) {
    if (!this.isAttached) return;
    const { encoding, digest, transmit } = this.options;
    transmit(encodeFrame(digest, {}, encodeBody(encoding, message)));
  }

  tellNack(ranges, reason) {
    for (const group of groupsOf(ranges, RANGES_MAX)) {
      this.counts.nacksSent += 1;
      this.tell({ type: 'nack', ranges: group, reason });
    }
  }

  tellSkip(ranges) {
    for (const group of groupsOf(ranges, RANGES_MAX)) {
      this.counts.skipsSent += 1;
      this.tell({ type: 'skip', ranges: group, reason: 'superseded' });
    }
  }

  tellHeartbeat() {
    this.tell({ type: 'heartbeat', ...this.receiver.watermarks(), next: this.sender.next });
  }

  /** One ACK for all that arrived together [ACK-2]. */
  scheduleAck() {
    if (this.ackTimer !== null) return;
    this.ackTimer = this.options.clock.after(() => {
      this.ackTimer = null;
      this.tell({ type: 'ack', ...this.receiver.watermarks() });
    }, 0);
  }

  get isIdle() {
    return this.outbox.size === 0 && this.sender.applied === this.sender.next;
  }

  // ---- connections

  /**
   * A connection is established.
   *
   * @param {{expects: number, ranges?: any[], lost?: any[]}} peer what the other side has
   */
  attach({ expects, ranges = [], lost = [] }) {
    this.isAttached = true;
    this.isHeldBack = false;
    const answer = this.sender.onResume(expects, [...ranges, ...lost], this.now);
    if (!answer) return this.fail('bad_sequence', 4102);
    for (const data of answer.frames) this.options.transmit(data);
    this.tellSkip(answer.skip);
    this.receiver.restart();
    this.flush();
  }

  detach() {
    this.isAttached = false;
    if (this.ackTimer !== null) this.options.clock.cancel(this.ackTimer);
    this.ackTimer = null;
  }

  fail(code, close) {
    this.counts.errorsFatal += 1;
    this.options.fail(code, close);
  }

  // ---- receiving

  onCorrupt() {
    this.tellNack(this.receiver.onCorrupt(this.now), 'corrupt');
  }

  /**
   * A frame with a good digest.
   *
   * @param {import('./frames.mjs').Decoded} frame
   * @param {number} bytes
   */
  onFrame(frame, bytes) {
    if (frame.sequence > 0) this.onNumbered(frame, bytes);
    else if (frame.message) this.onUnnumbered(frame.message);
    this.askForMissing();
    this.flush();
  }

  onNumbered({ sequence, stream, digest, message }, bytes) {
    const key = message ? this.options.keyOf?.(message) : undefined;
    const item = { message, head: { sequence, stream } };
    const { verdict, ready } = this.receiver.onFrame({ number: sequence, digest, bytes, key, item }, this.now);
    if (verdict === 'beyond') return this.fail('bad_sequence', 4102);
    if (verdict === 'conflict') return this.fail('conflict', 4009);
    this.hand(ready);
    this.scheduleAck();
  }

  hand(ready) {
    // A malformed body has used up its number and says nothing [FRM-4].
    for (const { message, head } of ready) if (message) this.options.deliver(message, head);
  }

  onUnnumbered(message) {
    const isFit = FITNESS[message.type]?.(message);
    if (isFit === undefined) return this.options.deliver(message, { sequence: 0, stream: 0 });
    if (!isFit) return;
    if (message.type === 'nack') this.onNack(message);
    else if (message.type === 'skip') this.onSkip(message);
    else this.onWatermarks(message);
  }

  onWatermarks(message) {
    const lost = this.sender.takeLost(message.lost ?? []);
    if (!this.sender.onAck(message, this.now)) return this.fail('bad_sequence', 4102);
    for (const each of lost) this.options.onGivenUp?.(each);
    if (message.type !== 'heartbeat') return;
    this.receiver.learn(message.next, this.now);
    this.scheduleAck();
  }

  onNack({ ranges }) {
    this.counts.nacksReceived += 1;
    const answer = this.sender.onNack(ranges, this.now);
    for (const data of answer.frames) this.options.transmit(data);
    this.tellSkip(answer.skip);
    if (answer.heartbeat) this.tellHeartbeat();
  }

  onSkip({ ranges }) {
    const ready = this.receiver.onSkip(ranges, this.now);
    if (!ready) return this.fail('bad_sequence', 4102);
    this.hand(ready);
    this.scheduleAck();
  }

  // ---- time

  askForMissing() {
    const { ranges, isLost } = this.receiver.takeNack(this.now);
    if (ranges.length > 0) this.tellNack(ranges, 'gap');
    if (isLost) this.fail('lost', 4200);
  }

  /** Do what is due. */
  tick() {
    if (!this.isAttached) return;
    this.askForMissing();
    if (this.isAttached && this.sender.takeProbe(this.now)) this.tellHeartbeat();
    this.flush();
  }

  /** When `tick` is needed next. */
  dueAt() {
    return this.isAttached ? Math.min(this.receiver.nackAt(), this.sender.probeAt) : Infinity;
  }
}

const isCount = (value) => Number.isSafeInteger(value) && value >= 1;
const isAck = (message) =>
  isCount(message.received) &&
  isCount(message.applied) &&
  isCount(message.durable) &&
  isCount(message.limit) &&
  (message.ranges === undefined || areRanges(message.ranges)) &&
  (message.lost === undefined || areRanges(message.lost));
const hasRanges = (message) => areRanges(message.ranges) && message.ranges.length > 0;

/** Whether the body of an unnumbered message of delivery is well formed. */
const FITNESS = {
  ack: isAck,
  heartbeat: (message) => isAck(message) && isCount(message.next),
  nack: hasRanges,
  skip: hasRanges,
};
