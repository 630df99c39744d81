/** A client's session: handshake, resume, reconnecting, liveness (sections 5, 6, 8.6, 9). */

import { realClock } from './clock.mjs';
import { RoundTrip } from './delivery.mjs';
import { Exchange } from './exchange.mjs';
import { dataBytes, decodeFrame, encodeBody, encodeFrame, SUBPROTOCOLS } from './frames.mjs';

/**
 * @typedef {object} SessionHandlers
 * @property {(welcome: any) => void} onFresh numbers begin at 1: everything is to be told anew [RSM-7]
 * @property {(welcome: any) => void} onResumed the session goes on
 * @property {(message: any, head: {sequence: number, stream: number}) => void} onMessage
 * @property {(message: any) => void} onGivenUp the server will never have a message that was sent [ACK-6]
 * @property {(reason: string) => void} onEnded the session is over and does not connect again
 *
 * @typedef {object} SessionOptions
 * @property {string} url
 * @property {string} [token]
 * @property {'produce' | 'observe' | 'both'} role
 * @property {import('./frames.mjs').Encoding} encoding
 * @property {string[]} digests
 * @property {string[]} units
 * @property {string} hash
 * @property {string} name
 * @property {import('./link.mjs').Connect} connect
 * @property {import('./clock.mjs').Clock} [clock]
 * @property {() => number} [random]
 */

const HELLO_MS = 250;
const WELCOME_MS_MAX = 10_000;
const BACKOFF_MS_MIN = 250;
const BACKOFF_MS_MAX = 10_000;
const CORRUPT_WINDOW = 64;
// Any code but 1000, which would end the session. A browser's WebSocket allows 3000 … 4999 only.
const CLOSE_AND_RESUME = 3000;

/** The close codes after which a client does not come back [RSM-9]. */
const isTerminal = (code) => code === 1008 || (code >= 4000 && code < 4100);

/** @typedef {'detached' | 'greeting' | 'established' | 'closed'} State */

export class Session {
  /**
   * @param {SessionOptions} options
   * @param {SessionHandlers} handlers
   */
  constructor(options, handlers) {
    this.options = options;
    this.handlers = handlers;
    this.clock = options.clock ?? realClock;
    this.random = options.random ?? Math.random;
    /** @type {State} */
    this.state = 'detached';
    /** @type {any} the last WELCOME */
    this.welcome = null;
    /** @type {Exchange | null} */
    this.exchange = null;
    this.attempt = 0;
    /** @type {import('./link.mjs').Link | null} */
    this.link = null;
    this.backoffMs = BACKOFF_MS_MIN;
    this.goawayMs = null;
    this.timers = new Map();
    this.recentCorrupt = [];
    this.counts = { connections: 0, resumes: 0, fresh: 0, corrupt: 0, early: 0, malformed: 0 };
    this.totals = { retransmitted: 0, nacks: 0, skipped: 0, duplicates: 0 };
    this.errors = new Map();
    this.closes = [];
  }

  // ---- timers, one of each name

  setTimer(name, ms, action) {
    this.clearTimer(name);
    const timer = this.clock.after(() => {
      this.timers.delete(name);
      action();
    }, ms);
    this.timers.set(name, timer);
  }

  clearTimer(name) {
    if (this.timers.has(name)) this.clock.cancel(this.timers.get(name));
    this.timers.delete(name);
  }

  clearTimers() {
    for (const name of [...this.timers.keys()]) this.clearTimer(name);
  }

  // ---- connecting

  start() {
    this.connect();
  }

  connect() {
    this.attempt += 1;
    this.counts.connections += 1;
    this.recentCorrupt = [];
    const { url, encoding, connect } = this.options;
    /** @type {import('./link.mjs').Link} */
    let link;
    // Whatever an abandoned link still says is not for this connection.
    const ifCurrent = (action) => (value) => {
      if (this.link === link) action(value);
    };
    link = connect(url, SUBPROTOCOLS[encoding], {
      open: ifCurrent(() => this.greet()),
      message: ifCurrent((data) => this.onData(data)),
      close: ifCurrent((code) => this.onClosed(code)),
    });
    this.link = link;
    this.setTimer('welcome', WELCOME_MS_MAX, () => this.abandon());
  }

  greet() {
    this.state = 'greeting';
    this.greetedAt = this.clock.now();
    const data = encodeFrame('crc32', {}, encodeBody(this.options.encoding, this.hello()));
    const repeat = () => {
      this.link?.send(data);
      this.setTimer('hello', HELLO_MS, repeat);
    };
    repeat();
  }

  hello() {
    const { role, name, token, digests, units, hash } = this.options;
    return {
      type: 'hello',
      attempt: this.attempt,
      role,
      client: { name },
      auth: token,
      digests,
      units,
      hash,
      resume: this.resumption(),
    };
  }

  resumption() {
    if (!this.welcome || !this.exchange) return undefined;
    const { session, secret, epoch } = this.welcome;
    const { receiver, sender } = this.exchange;
    return { session, secret, epoch, expects: receiver.expected, next: sender.next };
  }

  // ---- what comes in

  onData(data) {
    this.heardAt = this.clock.now();
    const greeting = this.state !== 'established';
    const digest = this.welcome?.digest;
    const algorithms = greeting || digest === 'crc32' ? ['crc32'] : [digest, 'crc32'];
    const frame = decodeFrame(this.options.encoding, algorithms, data);
    this.noteCorrupt(frame.outcome === 'corrupt');
    if (greeting) return this.onEarlyFrame(frame);
    if (frame.outcome === 'corrupt') return this.onCorruptFrame();
    if (frame.outcome === 'fatal') return this.fail(frame.code, frame.close);
    if (frame.message?.type === 'welcome') return; // a repetition changes nothing
    // Only a WELCOME may be told by another digest than the one in force [DIG-5].
    if (frame.algorithm !== digest) return this.onCorruptFrame();
    if (!frame.message) {
      if (frame.isChunk) return;
      this.counts.malformed += 1;
    }
    this.exchange.onFrame(frame, dataBytes(data));
    this.arm();
  }

  /** Before WELCOME only WELCOME and ERROR count [HSK-3]. */
  onEarlyFrame(frame) {
    const message = frame.outcome === 'frame' ? frame.message : null;
    if (message?.type === 'welcome' && message.attempt === this.attempt) this.onWelcome(message);
    else if (message?.type === 'error') this.noteError(message);
    else this.counts.early += 1;
  }

  /** Frames that use a digest not known yet are not evidence of a bad line, so only an established one is judged. */
  noteCorrupt(isCorrupt) {
    if (this.state !== 'established') return;
    this.recentCorrupt.push(isCorrupt);
    if (this.recentCorrupt.length > CORRUPT_WINDOW) this.recentCorrupt.shift();
  }

  onCorruptFrame() {
    this.counts.corrupt += 1;
    if (this.recentCorrupt.filter(Boolean).length > CORRUPT_WINDOW / 2) return this.fail('corruption', 4110);
    this.exchange.onCorrupt();
    this.arm();
  }

  onWelcome(welcome) {
    this.clearTimer('hello');
    this.clearTimer('welcome');
    this.backoffMs = BACKOFF_MS_MIN;
    const before = this.welcome;
    const goesOn = before && this.exchange && welcome.session === before.session && welcome.epoch === before.epoch;
    this.welcome = welcome;
    this.state = 'established';
    this.sentAt = this.clock.now();
    if (goesOn) this.counts.resumes += 1;
    else this.renew(welcome);
    this.exchange.attach(welcome);
    if (this.state !== 'established') return;
    if (goesOn) this.handlers.onResumed(welcome);
    else this.handlers.onFresh(welcome);
    this.arm();
  }

  /** A new numbering: nothing of the old one is sent [RSM-7]. */
  renew(welcome) {
    this.counts.fresh += 1;
    this.collectTotals();
    const roundTrip = new RoundTrip();
    roundTrip.sample(Math.min(200, Math.max(1, this.clock.now() - this.greetedAt)));
    this.exchange = new Exchange({
      encoding: this.options.encoding,
      digest: welcome.digest,
      limits: welcome.limits,
      isJournaled: welcome.durability === 'full',
      clock: this.clock,
      random: this.random,
      roundTrip,
      transmit: (data) => this.transmit(data),
      deliver: (message, head) => this.onMessage(message, head),
      fail: (code, close) => this.fail(code, close),
      onDrained: () => this.onDrained?.(),
      onGivenUp: (message) => this.handlers.onGivenUp(message),
    });
  }

  onMessage(message, head) {
    if (message.type === 'goaway') {
      this.goawayMs = message.retry_ms;
      this.exchange.isHeldBack = true;
      return;
    }
    if (message.type === 'error') this.noteError(message);
    this.handlers.onMessage(message, head);
  }

  noteError({ code, message }) {
    const seen = this.errors.get(code) ?? { count: 0, message };
    this.errors.set(code, { ...seen, count: seen.count + 1 });
  }

  // ---- what goes out

  transmit(data) {
    this.sentAt = this.clock.now();
    this.link?.send(data);
  }

  /** Queue a message, now or for when there is a session. */
  send(message, about) {
    this.exchange?.enqueue(message, about);
    this.arm();
  }

  // ---- time

  /** Wake up when something is due next. */
  arm() {
    if (this.state !== 'established') return;
    const { heartbeat_ms: heartbeat, dead_ms: dead } = this.welcome.limits;
    const at = Math.min(this.exchange.dueAt(), this.sentAt + heartbeat, this.heardAt + dead);
    this.setTimer('due', Math.max(1, at - this.clock.now()), () => this.onDue());
  }

  onDue() {
    if (this.state !== 'established') return;
    const { heartbeat_ms: heartbeat, dead_ms: dead } = this.welcome.limits;
    const now = this.clock.now();
    if (now - this.heardAt >= dead) return this.abandon();
    this.exchange.tick();
    if (this.state === 'established' && now - this.sentAt >= heartbeat) this.exchange.tellHeartbeat();
    this.arm();
  }

  // ---- ends

  /** The other side broke the protocol, or numbers are lost: say so, end the connection, and go on by its code. */
  fail(code, close) {
    if (code === 'lost') return this.abandon();
    this.noteError({ code: `sent ${code}`, message: '' });
    this.exchange?.tell({ type: 'error', code, message: `the client found: ${code}` });
    const link = this.link;
    this.onClosed(close);
    link?.close(close);
  }

  /** End the connection without waiting for an answer, and resume. */
  abandon() {
    const link = this.link;
    this.onClosed(1006);
    link?.close(CLOSE_AND_RESUME);
  }

  onClosed(code) {
    const wasEstablished = this.state === 'established';
    this.closes.push(code);
    this.link = null;
    this.clearTimers();
    this.exchange?.detach();
    if (this.state === 'closed') return;
    this.state = 'detached';
    if (code === 4009) {
      // The numbering is spoilt: a new session, told anew from the texts that are here [SEQ-6].
      this.welcome = null;
      this.setTimer('reconnect', 0, () => this.connect());
    } else if (isTerminal(code)) this.finish(`closed with ${code}`);
    else this.setTimer('reconnect', this.pauseBefore(code, wasEstablished), () => this.connect());
  }

  /** How long to wait before the next connection [RSM-9]. */
  pauseBefore(code, wasEstablished) {
    if (this.goawayMs !== null) {
      const pause = this.random() * this.goawayMs;
      this.goawayMs = null;
      return pause;
    }
    const isBackingOff = code >= 4100 && code < 4200;
    if (wasEstablished && !isBackingOff) return 0;
    const pause = this.random() * this.backoffMs;
    this.backoffMs = Math.min(2 * this.backoffMs, BACKOFF_MS_MAX);
    return pause;
  }

  /** End the session for good: the server forgets it [SES-2]. */
  end() {
    const link = this.link;
    this.finish('ended');
    link?.close(1000);
  }

  finish(reason) {
    if (this.state === 'closed') return;
    this.state = 'closed';
    this.link = null;
    this.clearTimers();
    this.exchange?.detach();
    this.handlers.onEnded(reason);
  }

  /** Add what the numbering that ends has counted. */
  collectTotals() {
    const totals = this.totals;
    if (!this.exchange) return totals;
    const { sender, receiver, counts } = this.exchange;
    totals.retransmitted += sender.retransmitted;
    totals.nacks += counts.nacksSent + counts.nacksReceived;
    totals.skipped += counts.skipsSent + receiver.counts.skipped;
    totals.duplicates += receiver.counts.duplicates;
    return totals;
  }
}
