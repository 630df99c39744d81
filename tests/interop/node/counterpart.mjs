/**
 * A small server in memory, for the tests of this folder only: it lets a producer and an observer talk without a
 * network and without waiting. It knows sessions, resume, text documents and feeds; nothing of HTTP, tokens or limits.
 */

import { Exchange } from './exchange.mjs';
import { dataBytes, decodeFrame, encodeBody, encodeFrame } from './frames.mjs';
import { hashOf, Refusal, Text } from './text.mjs';

export const LIMITS = {
  frame_bytes: 262_144,
  window_events: 1024,
  window_bytes: 1 << 20,
  part_text_bytes: 65_536,
  document_bytes: 50_000_000,
  documents: 200,
  changes: 10_000,
  heartbeat_ms: 15_000,
  dead_ms: 45_000,
  retain_ms: 900_000,
};

const SUPERSEDABLE = new Set(['cursor', 'selection', 'viewport', 'focus', 'diagnostics', 'state', 'design.selection']);
const LATENCY_MS = 1;

const keyOf = (message) =>
  SUPERSEDABLE.has(message.type) ? `${message.type} ${message.document} ${message.view ?? ''}` : undefined;

export class Counterpart {
  /** @param {{clock: import('./clock.mjs').Clock, random: () => number, limits?: Record<string, number>}} options */
  constructor({ clock, random, limits = {} }) {
    this.clock = clock;
    this.random = random;
    this.limits = { ...LIMITS, ...limits };
    this.sessions = new Map();
    this.links = new Set();
    this.count = 0;
  }

  /** A `Connect` whose messages take a moment. */
  get connect() {
    return (_url, subprotocol, handlers) => {
      const link = new ServerLink(this, subprotocol, handlers);
      this.links.add(link);
      this.clock.after(() => link.isOpen && handlers.open(), LATENCY_MS);
      return {
        send: (data) => link.fromClient(data),
        close: (code = 1005) => link.closedByClient(code),
      };
    };
  }

  /** All connections are lost. */
  cut() {
    for (const link of [...this.links]) link.close(1006);
  }

  newSession(hello, link) {
    this.count += 1;
    const session = new ServerSession(this, `s${this.count}`, hello, link.encoding);
    this.sessions.set(session.id, session);
    return session;
  }
}

class ServerLink {
  constructor(server, subprotocol, handlers) {
    Object.assign(this, { server, handlers, isOpen: true, session: null, welcome: null });
    this.encoding = subprotocol.endsWith('.json') ? 'json' : 'msgpack';
  }

  send(data) {
    this.server.clock.after(() => this.isOpen && this.handlers.message(data), LATENCY_MS);
  }

  fromClient(data) {
    this.server.clock.after(() => this.isOpen && this.onData(data), LATENCY_MS);
  }

  close(code) {
    if (!this.isOpen) return;
    this.drop();
    this.server.clock.after(() => this.handlers.close(code), LATENCY_MS);
  }

  closedByClient(code) {
    if (code === 1000 && this.session) this.server.sessions.delete(this.session.id);
    this.close(code);
  }

  drop() {
    this.isOpen = false;
    this.server.links.delete(this);
    if (this.session?.link === this) this.session.detach();
  }

  onData(data) {
    const digest = this.session?.digest;
    const frame = decodeFrame(this.encoding, digest ? [digest, 'crc32'] : ['crc32'], data);
    if (frame.outcome === 'fatal') return this.close(frame.close);
    const isGood = frame.outcome === 'frame';
    if (isGood && frame.message?.type === 'hello') return this.onHello(frame.message);
    if (!this.session) return;
    if (!isGood || frame.algorithm !== digest) return this.session.exchange.onCorrupt();
    this.session.exchange.onFrame(frame, dataBytes(data));
    this.session.arm();
  }

  onHello(hello) {
    if (!this.welcome) this.admit(hello);
    if (this.welcome) this.send(encodeFrame('crc32', {}, encodeBody(this.encoding, this.welcome)));
    if (this.isNew) this.session.attach(this, hello);
    this.isNew = false;
  }

  admit(hello) {
    const { server } = this;
    const known = server.sessions.get(hello.resume?.session);
    if (known && hello.attempt <= known.attempt) return this.close(4010);
    const goesOn = known && known.accepts(hello.resume.secret) && known.encoding === this.encoding;
    this.session = goesOn ? known : server.newSession(hello, this);
    const verdict = goesOn ? 'resumed' : hello.resume ? 'rejected' : 'new';
    this.session.link?.close(4010);
    this.welcome = this.session.welcome(hello, verdict);
    this.isNew = true;
  }
}

class ServerSession {
  constructor(server, id, hello, encoding) {
    Object.assign(this, { server, id, encoding, hello, link: null, attempt: 0, lease: 0, secrets: [] });
    this.digest = hello.digests[0];
    this.unit = hello.units[0];
    this.documents = new Map();
    this.designs = new Set();
    this.presence = new Map();
    this.waiting = [];
    this.offset = 0;
    /** @type {{session: ServerSession, subscription: number, target: string}[]} who watches this session */
    this.watchers = [];
    this.exchange = new Exchange({
      encoding,
      digest: this.digest,
      limits: server.limits,
      clock: server.clock,
      random: server.random,
      keyOf,
      transmit: (data) => this.link?.send(data),
      deliver: (message) => this.onMessage(message),
      fail: (_code, close) => this.link?.close(close),
    });
  }

  accepts(secret) {
    return this.secrets.includes(secret);
  }

  welcome(hello, verdict) {
    this.attempt = hello.attempt;
    this.lease += 1;
    this.secrets = [...this.secrets.slice(-1), `${this.id}-${this.lease}`];
    const { received, ranges } = this.exchange.receiver.watermarks();
    return {
      type: 'welcome',
      attempt: hello.attempt,
      session: this.id,
      secret: this.secrets.at(-1),
      epoch: `epoch ${this.id}`,
      lease: this.lease,
      verdict,
      expects: received,
      ranges,
      next: this.exchange.sender.next,
      documents: [...this.documents].map(([document, { stale, text }]) => ({
        document,
        action: stale ? 'snapshot' : 'keep',
        version: text?.version ?? 0,
      })),
      digest: this.digest,
      unit: this.unit,
      hash: hello.hash,
      durability: 'none',
      limits: this.server.limits,
      server: { name: 'counterpart', version: '0' },
    };
  }

  attach(link, hello) {
    this.link = link;
    this.exchange.attach(this.lease > 1 ? hello.resume : { expects: 1, next: 1 });
    this.arm();
  }

  detach() {
    this.link = null;
    this.exchange.detach();
    this.server.clock.cancel(this.timer);
  }

  arm() {
    this.server.clock.cancel(this.timer);
    const at = this.exchange.dueAt();
    if (!this.link || at === Infinity) return;
    this.timer = this.server.clock.after(() => {
      this.exchange.tick();
      this.arm();
    }, Math.max(1, at - this.server.clock.now()));
  }

  request(message, stream) {
    this.exchange.enqueue(message, { kind: 'request', stream });
    this.arm();
  }

  refuse(code, message) {
    this.request({ type: 'error', code, message: code, document: message.document });
  }

  // ---- events

  onMessage(message) {
    if (message.type === 'error') return;
    if (message.type === 'subscribe') return this.onSubscribe(message);
    const key = keyOf(message);
    if (key) return this.onPresence(key, message);
    try {
      this.onDurable(message);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      this.refuse(error.code, message);
      if (this.documents.has(message.document)) this.makeStale(message.document, 'refused');
    }
  }

  /** What is about a document or a version that has not come yet waits for it [PRS-2, PRS-4]. */
  onPresence(key, message) {
    this.waiting = this.waiting.filter((waiting) => waiting.key !== key);
    if (!this.isTimely(message)) {
      this.waiting.push({ key, message });
      return;
    }
    this.presence.set(key, message);
    this.show(message);
  }

  isTimely(message) {
    if (message.type === 'focus') return true;
    if (message.type === 'design.selection') return this.designs.has(message.document);
    const document = this.documents.get(message.document);
    return document?.text && !(message.version > document.version);
  }

  retryWaiting() {
    const { waiting } = this;
    this.waiting = [];
    for (const { key, message } of waiting) this.onPresence(key, message);
  }

  onDurable(message) {
    const document = this.documents.get(message.document);
    const { type } = message;
    if (type === 'mention') return this.show(message);
    if (type.startsWith('design.')) {
      if (type === 'design.open') this.designs.add(message.document);
      else this.designs.delete(message.document);
      this.show(message);
    } else if (type === 'open') {
      this.documents.set(message.document, { uri: message.uri, text: null, version: 0, stale: null, transfer: null });
      this.show(message);
      this.onWhole(this.documents.get(message.document), message);
    } else if (!document) throw new Refusal('unknown_document', 'not open');
    else if (type === 'close') {
      this.documents.delete(message.document);
      this.show(message);
    } else if (type === 'snapshot') {
      this.show(message);
      this.onWhole(document, message);
    } else if (!document.stale) this.onChange(document, message);
    this.retryWaiting();
  }

  onChange(document, message) {
    if (message.type === 'part') return this.onPart(document, message);
    if (document.transfer) throw new Refusal('bad_part', 'between parts');
    if (message.type === 'edit') {
      if (message.base !== document.version) throw new Refusal('bad_version', `${message.base} ${document.version}`);
      if (message.length !== document.text.length) throw new Refusal('length_mismatch', 'before the edit');
      document.text.apply(message.changes, message.mode);
      document.version = message.version;
    } else if (message.type === 'version') {
      document.version = message.version;
      this.verify(document, message);
    }
    this.show(message);
  }

  onWhole(document, message) {
    document.transfer = { message, pieces: [] };
    if (message.text !== undefined) this.install(document, message.text);
  }

  onPart(document, message) {
    const { transfer } = document;
    if (!transfer || message.index !== transfer.pieces.length) throw new Refusal('bad_part', `${message.index}`);
    transfer.pieces.push(message.text);
    this.show(message, 0);
    if (transfer.pieces.length === transfer.message.parts) this.install(document, transfer.pieces.join(''));
  }

  install(document, content) {
    const { message } = document.transfer;
    Object.assign(document, { transfer: null, stale: null, version: message.version, text: new Text(content, this.unit) });
    this.verify(document, message);
  }

  verify({ text }, { length, hash }) {
    if (text.length !== length) throw new Refusal('length_mismatch', 'whole text');
    if (hashOf(text.toString(), hash.split(':')[0]) !== hash) throw new Refusal('hash_mismatch', 'whole text');
  }

  makeStale(alias, reason) {
    const document = this.documents.get(alias);
    document.stale = reason;
    document.transfer = null;
    this.show({ type: 'stale', document: alias, reason });
    this.request({ type: 'snapshot_request', document: alias, reason, version: document.version });
  }

  // ---- feeds

  show(event, count = 1) {
    const from = this.offset;
    this.offset += count;
    for (const { session, subscription } of this.watchers) {
      session.request({ type: 'update', session: this.id, from, to: this.offset, events: [event] }, subscription);
    }
  }

  onSubscribe({ subscription, session: target }) {
    for (const other of this.server.sessions.values()) {
      other.watchers = other.watchers.filter((watcher) => watcher.session !== this || watcher.subscription !== subscription);
    }
    const other = this.server.sessions.get(target);
    if (!other) return this.request({ type: 'error', code: 'not_found', message: 'no such session', subscription });
    this.request({ type: 'subscribed', subscription, sessions: [target] });
    const { id, offset } = other;
    this.request({ type: 'sync', session: id, epoch: 'e', offset, reason: 'subscribed', client: other.hello.client }, subscription);
    const tell = (event) => this.request({ type: 'update', session: id, from: offset, to: offset, events: [event] }, subscription);
    for (const [document, { uri, text, version, transfer, stale }] of other.documents) {
      if (text) tell({ type: 'open', document, uri, version, text: text.toString(), length: text.length });
      else tell({ type: 'open', document, uri, version: transfer.message.version, parts: transfer.message.parts });
      if (stale) tell({ type: 'stale', document, reason: stale });
      if (!transfer) continue;
      if (text) tell({ ...transfer.message });
      transfer.pieces.forEach((piece, index) => tell({ type: 'part', document, version: transfer.message.version, index, text: piece }));
    }
    for (const document of other.designs) tell({ type: 'design.open', document });
    for (const message of other.presence.values()) {
      if (message.type === 'focus' || other.designs.has(message.document) || other.documents.has(message.document)) tell(message);
    }
    this.request({ type: 'synced', session: id, offset }, subscription);
    other.watchers.push({ session: this, subscription, target });
  }
}
