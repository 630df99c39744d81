/**
 * The part of MessagePack that the protocol uses: maps with string keys, arrays, strings, integers up to 2^53−1,
 * 64-bit floats, booleans, nil and binary. Everything else fails to decode.
 */

const UTF8 = new TextEncoder();
const STRICT_UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
const DEPTH_MAX = 64;

class Writer {
  constructor() {
    this.bytes = new Uint8Array(256);
    this.view = new DataView(this.bytes.buffer);
    this.length = 0;
  }

  /** Make room and return the offset of the first new byte. */
  grow(count) {
    const offset = this.length;
    this.length += count;
    if (this.length > this.bytes.length) {
      const larger = new Uint8Array(Math.max(this.length, this.bytes.length * 2));
      larger.set(this.bytes);
      this.bytes = larger;
      this.view = new DataView(larger.buffer);
    }
    return offset;
  }

  byte(value) {
    const offset = this.grow(1);
    this.bytes[offset] = value;
  }

  /** A type byte and a big-endian unsigned number of 1, 2 or 4 bytes. */
  head(type, size, value) {
    const offset = this.grow(1 + size);
    this.bytes[offset] = type;
    if (size === 1) this.view.setUint8(offset + 1, value);
    else if (size === 2) this.view.setUint16(offset + 1, value);
    else this.view.setUint32(offset + 1, value);
  }

  append(bytes) {
    const offset = this.grow(bytes.length);
    this.bytes.set(bytes, offset);
  }
}

function writeInteger(writer, value) {
  if (value >= 0) {
    if (value < 0x80) writer.byte(value);
    else if (value < 0x100) writer.head(0xcc, 1, value);
    else if (value < 0x10000) writer.head(0xcd, 2, value);
    else if (value < 0x100000000) writer.head(0xce, 4, value);
    else writer.view.setBigUint64(writeWide(writer, 0xcf), BigInt(value));
    return;
  }
  if (value >= -32) writer.byte(value & 0xff);
  else if (value >= -0x80) writer.head(0xd0, 1, value & 0xff);
  else if (value >= -0x8000) writer.head(0xd1, 2, value & 0xffff);
  else if (value >= -0x80000000) writer.head(0xd2, 4, value >>> 0);
  else writer.view.setBigInt64(writeWide(writer, 0xd3), BigInt(value));
}

/** @returns {number} the offset of eight bytes behind the type byte */
function writeWide(writer, type) {
  const offset = writer.grow(9);
  writer.bytes[offset] = type;
  return offset + 1;
}

/** The shortest head for a length: `fix` (or null) holds lengths up to `fixMax`, then 8 (or null), 16 and 32 bits. */
function writeLength(writer, length, fix, fixMax, types) {
  if (fix !== null && length <= fixMax) writer.byte(fix | length);
  else if (types[0] !== null && length < 0x100) writer.head(types[0], 1, length);
  else if (length < 0x10000) writer.head(types[1], 2, length);
  else writer.head(types[2], 4, length);
}

function writeString(writer, text) {
  const bytes = UTF8.encode(text);
  writeLength(writer, bytes.length, 0xa0, 31, [0xd9, 0xda, 0xdb]);
  writer.append(bytes);
}

function writeNumber(writer, value) {
  if (Number.isSafeInteger(value) && !Object.is(value, -0)) writeInteger(writer, value);
  else writer.view.setFloat64(writeWide(writer, 0xcb), value);
}

function writeValue(writer, value) {
  if (value === null) writer.byte(0xc0);
  else if (typeof value === 'string') writeString(writer, value);
  else if (typeof value === 'number') writeNumber(writer, value);
  else if (typeof value === 'boolean') writer.byte(value ? 0xc3 : 0xc2);
  else if (value instanceof Uint8Array) {
    writeLength(writer, value.length, null, 0, [0xc4, 0xc5, 0xc6]);
    writer.append(value);
  } else if (Array.isArray(value)) {
    writeLength(writer, value.length, 0x90, 15, [null, 0xdc, 0xdd]);
    for (const item of value) writeValue(writer, item);
  } else if (typeof value === 'object') writeMap(writer, value);
  else throw new TypeError(`cannot encode a ${typeof value}`);
}

/** Fields whose value is `undefined` are left out [CNV-5]. */
function writeMap(writer, value) {
  const keys = Object.keys(value).filter((key) => value[key] !== undefined);
  writeLength(writer, keys.length, 0x80, 15, [null, 0xde, 0xdf]);
  for (const key of keys) {
    writeString(writer, key);
    writeValue(writer, value[key]);
  }
}

/**
 * @param {unknown} value
 * @returns {Uint8Array}
 */
export function encode(value) {
  const writer = new Writer();
  writeValue(writer, value);
  return writer.bytes.slice(0, writer.length);
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.offset = 0;
  }

  take(count) {
    const offset = this.offset;
    if (offset + count > this.bytes.length) throw new RangeError('the body ends too early');
    this.offset += count;
    return offset;
  }

  uint(size) {
    const offset = this.take(size);
    if (size === 1) return this.view.getUint8(offset);
    return size === 2 ? this.view.getUint16(offset) : this.view.getUint32(offset);
  }
}

function safeInteger(value) {
  const number = Number(value);
  if (!Number.isSafeInteger(number)) throw new RangeError('an integer is outside ±(2^53−1)');
  return number;
}

function readString(reader, length) {
  const offset = reader.take(length);
  return STRICT_UTF8.decode(reader.bytes.subarray(offset, offset + length));
}

function readBinary(reader, length) {
  const offset = reader.take(length);
  return reader.bytes.slice(offset, offset + length);
}

function readArray(reader, length, depth) {
  const items = [];
  for (let index = 0; index < length; index += 1) items.push(readValue(reader, depth + 1));
  return items;
}

function readMap(reader, length, depth) {
  const map = {};
  for (let index = 0; index < length; index += 1) {
    const key = readValue(reader, depth + 1);
    if (typeof key !== 'string') throw new TypeError('a key is not a string');
    // defineProperty, so that a key such as __proto__ is data like any other.
    Object.defineProperty(map, key, {
      value: readValue(reader, depth + 1),
      enumerable: true,
      writable: true,
      configurable: true,
    });
  }
  return map;
}

/** What follows each type byte from 0xc0 to 0xdf; extension types are absent on purpose. */
const READERS = {
  0xc0: () => null,
  0xc2: () => false,
  0xc3: () => true,
  0xc4: (reader) => readBinary(reader, reader.uint(1)),
  0xc5: (reader) => readBinary(reader, reader.uint(2)),
  0xc6: (reader) => readBinary(reader, reader.uint(4)),
  0xca: (reader) => reader.view.getFloat32(reader.take(4)),
  0xcb: (reader) => reader.view.getFloat64(reader.take(8)),
  0xcc: (reader) => reader.uint(1),
  0xcd: (reader) => reader.uint(2),
  0xce: (reader) => reader.uint(4),
  0xcf: (reader) => safeInteger(reader.view.getBigUint64(reader.take(8))),
  0xd0: (reader) => reader.view.getInt8(reader.take(1)),
  0xd1: (reader) => reader.view.getInt16(reader.take(2)),
  0xd2: (reader) => reader.view.getInt32(reader.take(4)),
  0xd3: (reader) => safeInteger(reader.view.getBigInt64(reader.take(8))),
  0xd9: (reader) => readString(reader, reader.uint(1)),
  0xda: (reader) => readString(reader, reader.uint(2)),
  0xdb: (reader) => readString(reader, reader.uint(4)),
  0xdc: (reader, depth) => readArray(reader, reader.uint(2), depth),
  0xdd: (reader, depth) => readArray(reader, reader.uint(4), depth),
  0xde: (reader, depth) => readMap(reader, reader.uint(2), depth),
  0xdf: (reader, depth) => readMap(reader, reader.uint(4), depth),
};

function readValue(reader, depth) {
  if (depth > DEPTH_MAX) throw new RangeError('the body is nested too deeply');
  const type = reader.uint(1);
  if (type < 0x80) return type;
  if (type >= 0xe0) return type - 0x100;
  if (type < 0x90) return readMap(reader, type & 0x0f, depth);
  if (type < 0xa0) return readArray(reader, type & 0x0f, depth);
  if (type < 0xc0) return readString(reader, type & 0x1f);
  const read = READERS[type];
  if (!read) throw new TypeError(`type byte 0x${type.toString(16)} is not part of the protocol`);
  return read(reader, depth);
}

/**
 * Decode exactly one value.
 *
 * @param {Uint8Array} bytes
 * @returns {unknown}
 * @throws when the bytes are anything but one whole value
 */
export function decode(bytes) {
  const reader = new Reader(bytes);
  const value = readValue(reader, 0);
  if (reader.offset !== bytes.length) throw new RangeError('bytes follow the value');
  return value;
}
