/** The observing side: subscriptions and feeds, every rule of which is checked (section 13). */

import { Session } from './session.mjs';
import { hashOf, lengthOf, Text } from './text.mjs';

/**
 * @typedef {object} Seen a document as an observer knows it
 * @property {string} uri
 * @property {number} version
 * @property {Text | null} text null until the first text is whole
 * @property {string | null} stale
 * @property {{message: any, pieces: string[]} | null} transfer
 *
 * @typedef {object} Feed
 * @property {string} session
 * @property {number} offset
 * @property {boolean} isSynced
 * @property {boolean} isEnded
 * @property {boolean | null} isConnected
 * @property {Map<number, Seen>} documents
 * @property {Map<number, any>} designs
 * @property {Map<string, any>} presence
 */

const SUPERSEDABLE = new Set(['cursor', 'selection', 'viewport', 'diagnostics', 'state']);
const PROBLEMS_KEPT = 20;

/** @returns {Feed} */
const newFeed = (session, offset) => ({
  session,
  offset,
  isSynced: false,
  isEnded: false,
  isConnected: null,
  documents: new Map(),
  designs: new Map(),
  presence: new Map(),
});

export class Observer {
  /** @param {import('./session.mjs').SessionOptions} options */
  constructor(options) {
    /** @type {Map<number, any>} */
    this.subscriptions = new Map();
    /** @type {Map<string, Feed>} by subscription and session */
    this.feeds = new Map();
    this.problems = [];
    this.counts = { updates: 0, events: 0, syncs: 0, versions: 0, stale: 0, problems: 0 };
    this.endedBy = null;
    this.session = new Session(options, {
      onFresh: () => this.onFresh(),
      onResumed: () => {},
      onMessage: (message, head) => this.onMessage(message, head),
      onGivenUp: (message) => this.onGivenUp(message),
      onEnded: (reason) => {
        this.endedBy = reason;
      },
    });
  }

  start() {
    this.session.start();
  }

  /** Watch a session; `"*"` for all. A subscription with the same number is replaced [OBS-1]. */
  subscribe(subscription, session, options = {}) {
    const message = { type: 'subscribe', subscription, session, ...options };
    this.subscriptions.set(subscription, message);
    for (const key of this.feeds.keys()) if (key.startsWith(`${subscription} `)) this.feeds.delete(key);
    this.session.send(message, { kind: 'request' });
  }

  /** @returns {Feed | undefined} */
  feed(subscription, session) {
    return this.feeds.get(`${subscription} ${session}`);
  }

  onFresh() {
    this.feeds.clear();
    for (const message of this.subscriptions.values()) this.session.send(message, { kind: 'request' });
  }

  /** Ask again, for what is still wanted [ACK-6]. */
  onGivenUp(message) {
    if (this.subscriptions.get(message.subscription) === message) this.session.send(message, { kind: 'request' });
  }

  problem(text) {
    this.counts.problems += 1;
    if (this.problems.length < PROBLEMS_KEPT) this.problems.push(text);
  }

  onMessage(message, { stream }) {
    if (message.type === 'sync') this.onSync(message, stream);
    else if (message.type === 'update') this.onUpdate(message, stream);
    else if (message.type === 'synced') this.onSynced(message, stream);
    else if (message.type === 'ended') this.onEndedFeed(message, stream);
    // `subscribed` needs no answer: each session that it names begins with a `sync`.
  }

  onSync({ session, offset }, stream) {
    this.counts.syncs += 1;
    this.feeds.set(`${stream} ${session}`, newFeed(session, offset));
  }

  onUpdate({ session, from, to, events }, stream) {
    this.counts.updates += 1;
    const feed = this.feed(stream, session);
    if (!feed) return this.problem('an update of a session without sync');
    const isJoined = feed.isSynced ? from === feed.offset && to >= from : from === feed.offset && to === feed.offset;
    if (!isJoined) this.problem(`an update from ${from} to ${to} at offset ${feed.offset}`);
    feed.offset = to;
    for (const event of events) this.onEvent(feed, event);
  }

  onSynced({ session, offset }, stream) {
    const feed = this.feed(stream, session);
    if (!feed) return this.problem('synced without sync');
    if (offset !== feed.offset) this.problem(`synced at ${offset}, sync was at ${feed.offset}`);
    feed.isSynced = true;
  }

  onEndedFeed({ session }, stream) {
    const feed = this.feed(stream, session);
    if (feed) feed.isEnded = true;
  }

  // ---- events

  onEvent(feed, event) {
    this.counts.events += 1;
    try {
      if (SUPERSEDABLE.has(event.type)) this.onPresence(feed, event);
      else HANDLERS[event.type]?.call(this, feed, event);
    } catch (error) {
      this.problem(`${event.type} of document ${event.document}: ${error.message}`);
    }
  }

  /** The document that an event is about; throws when it is not open. @returns {Seen} */
  seen(feed, { document: alias }) {
    const document = feed.documents.get(alias);
    if (!document) throw new Error('is not open');
    return document;
  }

  onPresence(feed, event) {
    this.seen(feed, event);
    feed.presence.set(`${event.type} ${event.document} ${event.view ?? ''}`, event);
  }

  onOpen(feed, event) {
    const before = feed.documents.get(event.document);
    const text = before?.uri === event.uri ? before.text : null;
    const document = { uri: event.uri, version: event.version, text, stale: null, transfer: null };
    feed.documents.set(event.document, document);
    this.onWhole(document, event);
  }

  /** An `open` or a `snapshot`: its text, or the parts that will follow. */
  onWhole(document, event) {
    if (event.text === undefined) document.transfer = { message: event, pieces: [] };
    else this.install(document, event, event.text);
  }

  onPart(feed, event) {
    const document = this.seen(feed, event);
    const { transfer } = document;
    if (!transfer) throw new Error('nobody announced it');
    if (event.index !== transfer.pieces.length) throw new Error(`part ${event.index} out of order`);
    if (event.version !== transfer.message.version) throw new Error('a part of another version');
    transfer.pieces.push(event.text);
    if (transfer.pieces.length === transfer.message.parts) {
      this.install(document, transfer.message, transfer.pieces.join(''));
    }
  }

  install(document, event, content) {
    document.transfer = null;
    document.stale = null;
    document.version = event.version;
    document.text = new Text(content, this.session.welcome.unit);
    this.check(document, event);
  }

  /** Compare with the length and the hash that an event tells. */
  check(document, { length, hash }) {
    const content = document.text.toString();
    const expected = lengthOf(content, document.text.unit);
    if (length !== undefined && length !== expected) throw new Error(`length ${length}, expected ${expected}`);
    if (hash !== undefined && hashOf(content, hash.split(':')[0]) !== hash) throw new Error('the hash differs');
  }

  onEdit(feed, event) {
    const document = this.seen(feed, event);
    if (!document.text) throw new Error('has no text yet');
    if (document.transfer) throw new Error('between parts');
    if (event.base !== document.version) throw new Error(`base ${event.base}, expected ${document.version}`);
    const { length } = document.text;
    if (event.length !== undefined && event.length !== length) throw new Error(`length ${event.length}, expected ${length}`);
    document.text.apply(event.changes, event.mode);
    document.version = event.version;
  }

  onVersion(feed, event) {
    const document = this.seen(feed, event);
    this.counts.versions += 1;
    if (event.version < document.version) throw new Error(`version ${event.version} after ${document.version}`);
    document.version = event.version;
    this.check(document, event);
  }

  onClose(feed, event) {
    this.seen(feed, event);
    feed.documents.delete(event.document);
    this.forgetPresence(feed, event.document);
  }

  forgetPresence(feed, alias) {
    for (const [key, { document }] of feed.presence) if (document === alias) feed.presence.delete(key);
  }

  onStale(feed, event) {
    this.counts.stale += 1;
    const document = feed.documents.get(event.document);
    if (document) document.stale = event.reason;
  }
}

/** What is done with each event that is not presence; others need nothing. */
const HANDLERS = {
  open: Observer.prototype.onOpen,
  snapshot(feed, event) {
    this.onWhole(this.seen(feed, event), event);
  },
  part: Observer.prototype.onPart,
  edit: Observer.prototype.onEdit,
  version: Observer.prototype.onVersion,
  close: Observer.prototype.onClose,
  stale: Observer.prototype.onStale,
  attachment(feed, event) {
    feed.isConnected = event.connected;
  },
  focus(feed, event) {
    feed.presence.set('focus', event);
  },
  'design.open': (feed, event) => feed.designs.set(event.document, { open: event, selection: null }),
  'design.selection'(feed, event) {
    const design = feed.designs.get(event.document);
    if (!design) throw new Error('is not an open design document');
    design.selection = event;
  },
  'design.close': (feed, event) => feed.designs.delete(event.document),
};
