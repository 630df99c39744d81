/**
 * The producing side: documents, their events, and how they heal (sections 10, 11, 12). Its texts are the authority
 * [DOC-1].
 */

import { dataBytes, encodeBody } from './frames.mjs';
import { cutText } from './pieces.mjs';
import { Session } from './session.mjs';
import { hashOf, Text } from './text.mjs';

/**
 * @typedef {object} Document
 * @property {number} alias
 * @property {string} uri
 * @property {string} [language]
 * @property {number} version
 * @property {Text} text
 * @property {Map<string, {message: any, key: string}>} presence the present value of each supersedable key
 * @property {number} editsSinceVersion
 * @property {number} editedAt
 * @property {number} versionAt when the last `version` was sent
 * @property {boolean} isRefused the server will not have it: nothing more is sent [DOC-7]
 * @property {number} reopenedAt
 * @property {number | null} savedVersion the version that was last told to be on disk
 */

const EDITS_PER_VERSION = 64;
const IDLE_MS = 500;
const VERSION_MS = 2000;
const WATCH_MS = 100;
const REOPEN_MS = 1000;
const BODY_RESERVE_BYTES = 8 << 10; // what a frame needs besides a text: header, uri, names of fields
const BACKLOG = 100;

/** Errors after which a document is not open [DOC-7]. */
const REFUSALS = new Set(['too_large', 'limit', 'excluded', 'unverifiable']);
/** Supersedable events about texts. */
const PRESENCE = new Set(['cursor', 'selection', 'viewport', 'diagnostics', 'state']);
/** What a snapshot makes unnecessary while it is unsent [DIV-4]. */
const INCLUDED = new Set(['open', 'edit', 'part', 'snapshot', 'version', 'save']);

export class Producer {
  /** @param {import('./session.mjs').SessionOptions} options */
  constructor(options) {
    /** @type {Map<number, Document>} */
    this.documents = new Map();
    /** @type {Map<number, any>} open design documents: their last `design.open` and `design.selection` */
    this.designs = new Map();
    this.focus = null;
    this.lastAlias = 0;
    this.counts = { edits: 0, snapshots: 0, requests: 0 };
    this.waiting = [];
    this.onSession = null;
    this.endedBy = null;
    this.session = new Session(options, {
      onFresh: (welcome) => this.onFresh(welcome),
      onResumed: (welcome) => this.onResumed(welcome),
      onMessage: (message) => this.onMessage(message),
      onGivenUp: (message) => this.onGivenUp(message),
      onEnded: (reason) => this.onEnded(reason),
    });
    this.session.onDrained = () => this.wake();
    this.clock = this.session.clock;
  }

  /** @returns {Promise<void>} when the first WELCOME has come */
  start() {
    this.session.start();
    this.clock.after(() => this.watch(), WATCH_MS);
    return this.until(() => this.session.welcome !== null);
  }

  get unit() {
    return this.session.welcome.unit;
  }

  get limits() {
    return this.session.welcome.limits;
  }

  // ---- waiting

  wake() {
    const waiting = this.waiting;
    this.waiting = [];
    for (const { isMet, resolve, reject } of waiting) {
      if (isMet()) resolve();
      else if (this.endedBy) reject(new Error(`the session is over: ${this.endedBy}`));
      else this.waiting.push({ isMet, resolve, reject });
    }
  }

  /** @param {() => boolean} isMet looked at whenever something may have changed @returns {Promise<void>} */
  until(isMet) {
    return new Promise((resolve, reject) => {
      this.waiting.push({ isMet, resolve, reject });
      this.wake();
    });
  }

  /** Resolves when there is not too much unsent, so that an editor faster than the line does not fill the memory. */
  ready() {
    return this.until(() => this.session.exchange.outbox.size < BACKLOG);
  }

  /** Resolves when the server has applied everything. */
  settled() {
    return this.until(() => this.session.state === 'established' && this.session.exchange.isIdle);
  }

  // ---- what the editor does

  /** @param {string} uri @param {string} content @param {string} [language] @returns {number} the alias */
  open(uri, content, language) {
    this.lastAlias += 1;
    this.openAs(this.lastAlias, uri, content, language);
    return this.lastAlias;
  }

  openAs(alias, uri, content, language) {
    /** @type {Document} */
    const document = {
      alias,
      uri,
      language,
      version: 1,
      text: new Text(content.toWellFormed(), this.unit),
      presence: new Map(),
      editsSinceVersion: 0,
      editedAt: 0,
      versionAt: this.clock.now(),
      isRefused: false,
      reopenedAt: -Infinity,
      savedVersion: null,
    };
    this.documents.set(alias, document);
    this.sendOpen(document);
  }

  /**
   * @param {number} alias
   * @param {import('./text.mjs').Change[]} changes
   * @param {'seq' | 'sim'} [mode]
   * @param {number} [step] by how much the version rises
   */
  edit(alias, changes, mode = 'seq', step = 1) {
    const document = this.documents.get(alias);
    const base = document.version;
    const length = document.text.length;
    document.text.apply(changes, mode);
    this.noteEdit(document, base + step);
    this.sendEdit(document, { base, changes, length, mode: mode === 'seq' ? undefined : mode });
  }

  /**
   * A transaction whose patches count code points, each applied to the result of the one before.
   *
   * @param {number} alias
   * @param {[number, number, string][]} patches
   */
  editPoints(alias, patches) {
    const document = this.documents.get(alias);
    const base = document.version;
    const length = document.text.length;
    const changes = patches.map(([offset, deleted, inserted]) => {
      const change = document.text.changeOfPoints(offset, deleted, inserted.toWellFormed());
      document.text.apply([change]);
      return change;
    });
    this.noteEdit(document, base + 1);
    this.sendEdit(document, { base, changes, length });
    return changes.at(-1);
  }

  noteEdit(document, version) {
    document.version = version;
    document.editsSinceVersion += 1;
    document.editedAt = this.clock.now();
    this.counts.edits += 1;
  }

  sendEdit(document, edit) {
    const message = { type: 'edit', document: document.alias, version: document.version, ...edit };
    if (!this.fitsFrame(message)) return this.sendSnapshot(document); // [DOC-9]
    this.sendDurable(document, message);
    if (document.editsSinceVersion >= EDITS_PER_VERSION) this.sendVersion(document, 'count');
  }

  fitsFrame(message) {
    if (message.changes.length > this.limits.changes) return false;
    const bytesAtMost = message.changes.reduce((sum, change) => sum + 64 + 6 * change[4].length, 0);
    const room = this.limits.frame_bytes - 256;
    return bytesAtMost < room || dataBytes(encodeBody(this.session.options.encoding, message)) < room;
  }

  /** Set a supersedable value: `cursor`, `selection`, `viewport`, `diagnostics` or `state`. */
  show(alias, type, fields) {
    const document = this.documents.get(alias);
    const version = type === 'state' ? undefined : document.version;
    const key = `${type} ${alias} ${fields.view ?? ''}`;
    const message = { type, document: alias, version, ...fields };
    document.presence.set(key, { message, key });
    this.sendPresence(document, { message, key });
  }

  setFocus(alias) {
    this.focus = { type: 'focus', document: alias ?? undefined, view: '' };
    this.session.send(this.focus, { kind: 'supersedable', key: 'focus' });
  }

  mention(alias, fields) {
    const document = this.documents.get(alias);
    this.sendDurable(document, { type: 'mention', document: alias, version: document.version, ...fields });
  }

  save(alias) {
    const document = this.documents.get(alias);
    document.savedVersion = document.version;
    this.sendVersion(document, 'save');
    this.sendDurable(document, { type: 'save', document: alias, version: document.version });
  }

  close(alias) {
    this.documents.delete(alias);
    this.forgetPresence(alias);
    if (this.focus?.document === alias) this.setFocus(null);
    this.session.send({ type: 'close', document: alias }, { kind: 'durable' });
  }

  openDesign(fields) {
    this.lastAlias += 1;
    const message = { type: 'design.open', document: this.lastAlias, ...fields };
    this.designs.set(this.lastAlias, { open: message, selection: null });
    this.session.send(message, { kind: 'durable' });
    return this.lastAlias;
  }

  selectDesign(alias, fields) {
    const message = { type: 'design.selection', document: alias, ...fields };
    this.designs.get(alias).selection = message;
    this.session.send(message, { kind: 'supersedable', key: `design.selection ${alias}` });
  }

  closeDesign(alias) {
    this.designs.delete(alias);
    this.forgetPresence(alias);
    this.session.send({ type: 'design.close', document: alias, reason: 'file_closed' }, { kind: 'durable' });
  }

  forgetPresence(alias) {
    this.session.exchange?.withdraw(({ message, kind }) => kind === 'supersedable' && message.document === alias);
  }

  /** End the session. */
  end() {
    this.session.end();
  }

  // ---- events of a document

  sendDurable(document, message) {
    if (!document.isRefused) this.session.send(message, { kind: 'durable' });
  }

  sendPresence(document, { message, key }) {
    if (!document.isRefused) this.session.send(message, { kind: 'supersedable', key });
  }

  sendOpen(document) {
    const { uri, language } = document;
    this.sendText(document, { type: 'open', document: document.alias, uri, language });
  }

  sendSnapshot(document) {
    this.counts.snapshots += 1;
    this.sendText(document, { type: 'snapshot', document: document.alias });
  }

  /** The whole text, in its message or in parts behind it [DOC-3]. */
  sendText(document, head) {
    const text = document.text.toString();
    const { alias, version } = document;
    const hash = hashOf(text, this.session.welcome.hash);
    const whole = { ...head, version, length: document.text.length, hash };
    const pieces = cutText(text, {
      textBytes: this.limits.part_text_bytes,
      frameBytes: this.limits.frame_bytes - BODY_RESERVE_BYTES,
      isJson: this.session.options.encoding === 'json',
    });
    document.editsSinceVersion = 0;
    document.versionAt = this.clock.now();
    if (pieces.length === 1) return this.sendDurable(document, { ...whole, text });
    this.sendDurable(document, { ...whole, parts: pieces.length });
    pieces.forEach((piece, index) => {
      this.sendDurable(document, { type: 'part', document: alias, version, index, text: piece });
    });
  }

  sendVersion(document, cause) {
    const { alias, version, text } = document;
    const hash = hashOf(text.toString(), this.session.welcome.hash);
    document.editsSinceVersion = 0;
    document.versionAt = this.clock.now();
    this.sendDurable(document, { type: 'version', document: alias, version, length: text.length, hash, cause });
  }

  /** Say the version of what has been edited, in pauses and at least every two seconds [VER-1]. */
  watch() {
    if (this.endedBy) return;
    const now = this.clock.now();
    for (const document of this.documents.values()) {
      if (document.editsSinceVersion === 0) continue;
      if (now - document.editedAt >= IDLE_MS) this.sendVersion(document, 'idle');
      else if (now - document.versionAt >= VERSION_MS) this.sendVersion(document, 'count');
    }
    this.wake();
    this.clock.after(() => this.watch(), WATCH_MS);
  }

  // ---- what the server says

  onFresh(welcome) {
    for (const document of this.documents.values()) {
      document.isRefused = false;
      if (document.text.unit !== welcome.unit) this.changeUnit(document, welcome.unit);
      this.sendOpen(document);
    }
    for (const { open } of this.designs.values()) this.session.send(open, { kind: 'durable' });
    this.sendAllPresence();
    this.onSession?.(welcome.session);
    this.wake();
  }

  /** Positions told before count other units, so they are forgotten; the next ones replace them. */
  changeUnit(document, unit) {
    document.text = new Text(document.text.toString(), unit);
    document.presence.clear();
  }

  onResumed(welcome) {
    for (const { document: alias, action } of welcome.documents ?? []) {
      if (action === 'snapshot') this.heal(alias);
    }
    this.sendAllPresence();
    this.wake();
  }

  sendAllPresence() {
    for (const document of this.documents.values()) {
      for (const value of document.presence.values()) this.sendPresence(document, value);
    }
    for (const [alias, { selection }] of this.designs) {
      if (selection) this.session.send(selection, { kind: 'supersedable', key: `design.selection ${alias}` });
    }
    if (this.focus) this.session.send(this.focus, { kind: 'supersedable', key: 'focus' });
  }

  onMessage(message) {
    if (message.type === 'snapshot_request') {
      this.counts.requests += 1;
      this.onRequest(message);
    } else if (message.type === 'error') this.onError(message);
    this.wake();
  }

  onRequest({ document: alias, reason }) {
    if (this.documents.has(alias)) this.heal(alias);
    else if (reason === 'lost' && !this.designs.has(alias)) {
      // It is closed here; its `close` may be what was lost [DIV-4].
      this.session.send({ type: 'close', document: alias }, { kind: 'durable' });
    }
  }

  /** Send again, under a new number, what no snapshot holds of what the server has given up [ACK-6]. */
  onGivenUp(message) {
    const { type, document: alias } = message;
    const document = this.documents.get(alias);
    const design = this.designs.get(alias);
    if (type === 'design.open' && design) {
      this.session.send(design.open, { kind: 'durable' });
      this.repeatPresence(alias);
    } else if (type === 'design.close' && !design) this.session.send(message, { kind: 'durable' });
    else if (type === 'design.selection') this.repeatPresence(alias);
    else if (type === 'focus') this.session.send(this.focus, { kind: 'supersedable', key: 'focus' });
    else if (!document) return;
    else if (type === 'open') this.reopen(document);
    else if (type === 'mention') this.sendDurable(document, message);
    else if (type === 'save' && message.version === document.savedVersion) {
      this.heal(alias); // a server drops what is said of a text that it does not trust [DIV-2]
      this.sendDurable(document, message);
    } else if (PRESENCE.has(type)) this.repeatPresence(alias);
  }

  /** The present values of a document's keys again, and the focus if it is there. */
  repeatPresence(alias) {
    const document = this.documents.get(alias);
    for (const value of document?.presence.values() ?? []) this.sendPresence(document, value);
    const selection = this.designs.get(alias)?.selection;
    if (selection) this.session.send(selection, { kind: 'supersedable', key: `design.selection ${alias}` });
    if (this.focus?.document === alias) this.session.send(this.focus, { kind: 'supersedable', key: 'focus' });
  }

  /** Open a document of which the server knows nothing, unless that was done a moment ago. */
  reopen(document) {
    if (this.clock.now() - document.reopenedAt <= REOPEN_MS) return;
    document.reopenedAt = this.clock.now();
    this.session.exchange.withdraw(({ message }) => message.document === document.alias && INCLUDED.has(message.type));
    this.sendOpen(document);
    this.repeatPresence(document.alias);
  }

  /** One snapshot of the present text, and then the present supersedable values [DIV-4]. */
  heal(alias) {
    const document = this.documents.get(alias);
    if (!document || document.isRefused) return;
    const taken = this.session.exchange.withdraw(
      ({ message }) => message.document === alias && INCLUDED.has(message.type),
    );
    // A snapshot needs a document that is open, so an `open` that is still unsent goes again, with the present text.
    if (taken.some(({ message }) => message.type === 'open')) this.sendOpen(document);
    else this.sendSnapshot(document);
    this.repeatPresence(alias);
  }

  onError({ code, document: alias }) {
    const document = this.documents.get(alias);
    if (!document) return;
    if (REFUSALS.has(code)) {
      document.isRefused = true;
      this.session.exchange.withdraw(({ message }) => message.document === alias);
    } else if (code === 'unknown_document') {
      this.reopen(document); // its `open` was given up for lost; the texts here are the authority
    }
  }

  onEnded(reason) {
    this.endedBy = reason;
    this.wake();
  }
}
