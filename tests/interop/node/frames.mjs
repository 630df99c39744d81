/** Frames of both encodings and their digests (section 4). */

import { crc32 } from './crc32.mjs';
import { decode as unpack, encode as pack } from './msgpack.mjs';
import { xxh3 } from './xxh3.mjs';

/**
 * @typedef {'msgpack' | 'json'} Encoding
 * @typedef {'crc32' | 'xxh3-64'} Digest
 * @typedef {Uint8Array | string} Data what one WebSocket message carries
 * @typedef {object} Decoded
 * @property {'frame' | 'corrupt' | 'fatal'} outcome
 * @property {number} [sequence]
 * @property {number} [stream]
 * @property {string} [digest] as 16 hexadecimal digits
 * @property {Digest} [algorithm] the one that fitted
 * @property {Record<string, any> | null} [message] null when the body is malformed or the kind is a chunk
 * @property {string} [code] of the ERROR that a fatal frame is answered with
 * @property {number} [close]
 */

const HEADER_BYTES = 24;
const UTF8 = new TextEncoder();
const STRICT_UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
const TEXT_HEAD = /^(0|[1-9][0-9]{0,19}) (0|[1-9][0-9]{0,19}) /;

/** @type {Record<Encoding, string>} */
export const SUBPROTOCOLS = { msgpack: 'streamctx.v1', json: 'streamctx.v1.json' };

/** @type {Record<Digest, (bytes: Uint8Array) => string>} */
const DIGESTS = {
  crc32: (bytes) => crc32(bytes).toString(16).padStart(16, '0'),
  'xxh3-64': (bytes) => xxh3(bytes).toString(16).padStart(16, '0'),
};

/** @param {Data} data */
export function dataBytes(data) {
  return typeof data === 'string' ? Buffer.byteLength(data) : data.byteLength;
}

/**
 * The body alone: it does not depend on the number, so its size is known before a number is spent.
 *
 * @param {Encoding} encoding
 * @param {Record<string, any>} message
 * @returns {Data}
 */
export function encodeBody(encoding, message) {
  return encoding === 'json' ? JSON.stringify(message) : pack(message);
}

/**
 * @param {Digest} algorithm
 * @param {{sequence?: number, stream?: number}} head
 * @param {Data} body from `encodeBody`
 * @returns {Data}
 */
export function encodeFrame(algorithm, { sequence = 0, stream = 0 }, body) {
  if (typeof body === 'string') {
    const rest = `${sequence} ${stream} ${body}`;
    return `${DIGESTS[algorithm](UTF8.encode(rest))} ${rest}`;
  }
  const bytes = new Uint8Array(HEADER_BYTES + body.length);
  const view = new DataView(bytes.buffer);
  view.setUint8(8, 1);
  view.setUint8(9, 1);
  view.setUint32(12, stream);
  view.setBigUint64(16, BigInt(sequence));
  bytes.set(body, HEADER_BYTES);
  view.setBigUint64(0, BigInt(`0x${DIGESTS[algorithm](bytes.subarray(8))}`));
  return bytes;
}

/** Which of the algorithms gives this digest, if any. */
function fitting(algorithms, digest, bytes) {
  return algorithms.find((algorithm) => DIGESTS[algorithm](bytes) === digest);
}

/** True when no string of the body holds a lone surrogate [CNV-4]. */
function isWellFormed(value) {
  if (typeof value === 'string') return value.isWellFormed();
  if (Array.isArray(value)) return value.every(isWellFormed);
  if (value !== null && typeof value === 'object') {
    return Object.entries(value).every(([key, item]) => key.isWellFormed() && isWellFormed(item));
  }
  return true;
}

function parseBody(parse) {
  try {
    const message = parse();
    const isMap = message !== null && typeof message === 'object' && !Array.isArray(message);
    return isMap && typeof message.type === 'string' ? message : null;
  } catch {
    return null;
  }
}

function parseJson(body) {
  const message = JSON.parse(body);
  // Only an escape can smuggle a lone surrogate through UTF-8.
  return /\\u[dD][89a-fA-F]/.test(body) && !isWellFormed(message) ? null : message;
}

const fatal = (code, close) => ({ outcome: /** @type {const} */ ('fatal'), code, close });
const CORRUPT = Object.freeze({ outcome: /** @type {const} */ ('corrupt') });

function decodeText(algorithms, data) {
  const digest = data.slice(0, 16);
  if (data[16] !== ' ' || !/^[0-9a-f]{16}$/.test(digest)) return CORRUPT;
  const rest = data.slice(17);
  const algorithm = fitting(algorithms, digest, UTF8.encode(rest));
  if (!algorithm) return CORRUPT;
  const head = TEXT_HEAD.exec(rest);
  if (!head) return fatal('bad_frame', 4102);
  const sequence = Number(head[1]);
  if (!Number.isSafeInteger(sequence)) return fatal('bad_sequence', 4102);
  const body = rest.slice(head[0].length);
  const message = parseBody(() => parseJson(body));
  return { outcome: 'frame', sequence, stream: Number(head[2]), digest, algorithm, message };
}

function decodeBinary(algorithms, bytes) {
  if (bytes.length < HEADER_BYTES) return CORRUPT;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const digest = view.getBigUint64(0).toString(16).padStart(16, '0');
  const algorithm = fitting(algorithms, digest, bytes.subarray(8));
  if (!algorithm) return CORRUPT;
  if (view.getUint8(8) !== 1) return fatal('unsupported', 4004);
  const kind = view.getUint8(9);
  if ((kind !== 1 && kind !== 2) || view.getUint16(10) !== 0) return fatal('bad_frame', 4102);
  const sequence = Number(view.getBigUint64(16));
  if (!Number.isSafeInteger(sequence)) return fatal('bad_sequence', 4102);
  const message = kind === 2 ? null : parseBody(() => unpack(bytes.subarray(HEADER_BYTES)));
  return { outcome: 'frame', sequence, stream: view.getUint32(12), digest, algorithm, message, isChunk: kind === 2 };
}

/**
 * @param {Encoding} encoding
 * @param {Digest[]} algorithms those that are acceptable, the likeliest first
 * @param {Data} data
 * @returns {Decoded & {isChunk?: boolean}}
 */
export function decodeFrame(encoding, algorithms, data) {
  if (encoding === 'json') {
    return typeof data === 'string' ? decodeText(algorithms, data) : fatal('bad_frame', 4102);
  }
  return typeof data === 'string' ? fatal('bad_frame', 4102) : decodeBinary(algorithms, data);
}

/**
 * Flip one bit of a frame in a way that leaves a text frame valid UTF-8, as a WebSocket text message must be.
 *
 * @param {Data} data
 * @param {number} where 0 ≤ where < 1
 * @returns {Data}
 */
export function flipBit(data, where) {
  if (typeof data !== 'string') {
    const copy = data.slice();
    copy[Math.floor(where * copy.length)] ^= 1;
    return copy;
  }
  const bytes = UTF8.encode(data);
  let index = Math.floor(where * bytes.length);
  while (bytes[index] >= 0x80) index -= 1; // the digest at the front is ASCII, so this ends
  bytes[index] ^= 1;
  return STRICT_UTF8.decode(bytes);
}
