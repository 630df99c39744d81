/** A text as lines, strict positions in the three units, changes, and hashes (sections 10.1, 10.3, 10.5). */

import { createHash } from 'node:crypto';
import { xxh3 } from './xxh3.mjs';

/**
 * @typedef {'utf-16' | 'utf-8' | 'utf-32'} Unit
 * @typedef {[number, number, number, number, string, number?]} Change
 */

const UTF8 = new TextEncoder();
const ASCII = /^[\0-\x7f]*$/;
// A line with its end, or a last line without one. Only \n, \r\n and \r end a line [POS-1].
const LINE = /[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$/g;

/** A change or a text that the rules refuse; `code` is that of the ERROR. */
export class Refusal extends Error {
  constructor(code, message) {
    super(`${code}: ${message}`);
    this.code = code;
  }
}

/** @param {string} text */
export function countCodePoints(text) {
  let count = text.length;
  for (let index = 0; index < text.length; index += 1) if (isLowSurrogate(text.charCodeAt(index))) count -= 1;
  return count;
}

/**
 * The length of a text in a unit [POS-4].
 *
 * @param {string} text
 * @param {Unit} unit
 */
export function lengthOf(text, unit) {
  if (unit === 'utf-16') return text.length;
  return unit === 'utf-8' ? Buffer.byteLength(text) : countCodePoints(text);
}

/**
 * @param {string} text
 * @param {'xxh3-64' | 'sha-256'} algorithm
 */
export function hashOf(text, algorithm) {
  const bytes = UTF8.encode(text);
  const digits =
    algorithm === 'sha-256' ? createHash('sha256').update(bytes).digest('hex') : xxh3(bytes).toString(16).padStart(16, '0');
  return `${algorithm}:${digits}`;
}

/** Split into lines that keep their ends; n line ends make n + 1 lines. */
export function splitLines(text) {
  const lines = text.match(LINE) ?? [];
  const last = lines.at(-1);
  if (last === undefined || last.endsWith('\n') || last.endsWith('\r')) lines.push('');
  return lines;
}

const isLowSurrogate = (code) => (code & 0xfc00) === 0xdc00;
const isHighSurrogate = (code) => (code & 0xfc00) === 0xd800;

/** The length of a line without its end, in UTF-16. */
function contentLength(line) {
  if (line.endsWith('\r\n')) return line.length - 2;
  return line.endsWith('\n') || line.endsWith('\r') ? line.length - 1 : line.length;
}

function unitsOfPoint(point, unit) {
  if (unit === 'utf-32') return 1;
  if (unit === 'utf-16') return point > 0xffff ? 2 : 1;
  if (point < 0x80) return 1;
  if (point < 0x800) return 2;
  return point < 0x10000 ? 3 : 4;
}

/** The UTF-16 index of a character of a line, or −1 when the character is not a place in it [POS-3]. */
export function indexOfCharacter(line, character, unit) {
  const end = contentLength(line);
  if (unit === 'utf-16' || ASCII.test(line)) {
    if (character > end) return -1;
    const splitsPair =
      character > 0 && isLowSurrogate(line.charCodeAt(character)) && isHighSurrogate(line.charCodeAt(character - 1));
    return splitsPair ? -1 : character;
  }
  let index = 0;
  let units = 0;
  while (units < character && index < end) {
    const point = line.codePointAt(index);
    units += unitsOfPoint(point, unit);
    index += point > 0xffff ? 2 : 1;
  }
  return units === character ? index : -1;
}

/** The inverse: how many units come before a UTF-16 index of a line. */
export function characterOfIndex(line, index, unit) {
  return unit === 'utf-16' ? index : lengthOf(line.slice(0, index), unit);
}

export class Text {
  /**
   * @param {string} text
   * @param {Unit} unit
   */
  constructor(text, unit) {
    this.unit = unit;
    this.reset(text);
  }

  /** @param {string} text */
  reset(text) {
    this.lines = splitLines(text);
    this.points = this.lines.map(countCodePoints);
    this.length = lengthOf(text, this.unit);
  }

  toString() {
    return this.lines.join('');
  }

  /** @returns {[number, number]} line and UTF-16 index @throws {Refusal} */
  resolve(line, character) {
    const text = this.lines[line];
    const index = text === undefined ? -1 : indexOfCharacter(text, character, this.unit);
    if (index < 0) throw new Refusal('bad_position', `line ${line}, character ${character}`);
    return [line, index];
  }

  /** The negotiated position of a line and a UTF-16 index. @returns {[number, number]} */
  position(line, index) {
    return [line, characterOfIndex(this.lines[line], index, this.unit)];
  }

  /** What lies between two places of (line, UTF-16 index). */
  between(startLine, startIndex, endLine, endIndex) {
    if (startLine === endLine) return this.lines[startLine].slice(startIndex, endIndex);
    const middle = this.lines.slice(startLine + 1, endLine).join('');
    return this.lines[startLine].slice(startIndex) + middle + this.lines[endLine].slice(0, endIndex);
  }

  /** Replace between two places of (line, UTF-16 index). */
  replace(startLine, startIndex, endLine, endIndex, inserted) {
    const removed = this.between(startLine, startIndex, endLine, endIndex);
    let first = startLine;
    const prefix = this.lines[startLine].slice(0, startIndex);
    let middle = prefix + inserted + this.lines[endLine].slice(endIndex);
    // A line that begins with \n now belongs to the \r that ends the line before: both become one line end.
    if (middle.startsWith('\n') && first > 0 && this.lines[first - 1].endsWith('\r')) {
      first -= 1;
      middle = this.lines[first] + middle;
    }
    const fresh = splitLines(middle);
    // The empty line after a final line end exists already, unless the replacement reached the last line.
    if (endLine < this.lines.length - 1) fresh.pop();
    spliceAll(this.points, first, endLine + 1 - first, fresh.map(countCodePoints));
    spliceAll(this.lines, first, endLine + 1 - first, fresh);
    this.length += lengthOf(inserted, this.unit) - lengthOf(removed, this.unit);
  }

  /**
   * Apply an edit whole or not at all [EDT-5].
   *
   * @param {Change[]} changes
   * @param {'seq' | 'sim'} [mode]
   * @throws {Refusal}
   */
  apply(changes, mode = 'seq') {
    if (mode === 'sim') return this.applyTogether(changes);
    const before = changes.length > 1 ? [this.lines.slice(), this.points.slice(), this.length] : null;
    try {
      for (const change of changes) this.applyOne(change);
    } catch (error) {
      if (before) [this.lines, this.points, this.length] = before;
      throw error;
    }
  }

  /** The places of a change, checked. @returns {[number, number, number, number]} */
  placesOf([startLine, startCharacter, endLine, endCharacter, , replaced]) {
    const start = this.resolve(startLine, startCharacter);
    const end = this.resolve(endLine, endCharacter);
    if (endLine < startLine || (endLine === startLine && endCharacter < startCharacter)) {
      throw new Refusal('bad_change', 'the range ends before it starts');
    }
    if (replaced !== undefined && lengthOf(this.between(...start, ...end), this.unit) !== replaced) {
      throw new Refusal('old_len_mismatch', 'the length of the replaced text differs');
    }
    return [...start, ...end];
  }

  applyOne(change) {
    this.replace(...this.placesOf(change), change[4]);
  }

  /** Mode `sim`: all positions are of the text before [EDT-1]. Offsets of the old text say where each change goes. */
  applyTogether(changes) {
    const starts = [0];
    for (const line of this.lines) starts.push(starts.at(-1) + line.length);
    const placed = changes.map((change) => {
      const [startLine, startIndex, endLine, endIndex] = this.placesOf(change);
      return { start: starts[startLine] + startIndex, end: starts[endLine] + endIndex, text: change[4] };
    });
    // Array sort is stable, so insertions at one place keep their order, and go before what is deleted there.
    placed.sort((left, right) => left.start - right.start || left.end - right.end);
    const old = this.toString();
    let at = 0;
    let result = '';
    for (const { start, end, text } of placed) {
      if (start < at) throw new Refusal('bad_change', 'ranges overlap');
      result += old.slice(at, start) + text;
      at = end;
    }
    this.reset(result + old.slice(at));
  }

  /** The place (line, UTF-16 index) of an offset in code points from the start of the text. */
  placeOfPoint(offset) {
    let left = offset;
    let line = 0;
    const last = this.lines.length - 1;
    while (line < last && left >= this.points[line]) {
      left -= this.points[line];
      line += 1;
    }
    const text = this.lines[line];
    if (this.points[line] === text.length) return [line, left];
    let index = 0;
    for (; left > 0; left -= 1) index += text.codePointAt(index) > 0xffff ? 2 : 1;
    return [line, index];
  }

  /**
   * The change that replaces `deleted` code points at `offset` by `inserted`.
   *
   * No position lies between \r and \n [POS-3], so a range that starts or ends there is widened by the half that it
   * splits, and the half comes back in the inserted text.
   *
   * @returns {Change} with the length of the replaced text as its sixth element
   */
  changeOfPoints(offset, deleted, inserted) {
    let [startLine, startIndex] = this.placeOfPoint(offset);
    let [endLine, endIndex] = deleted === 0 ? [startLine, startIndex] : this.placeOfPoint(offset + deleted);
    let text = inserted;
    if (startIndex > contentLength(this.lines[startLine])) {
      startIndex -= 1;
      text = `\r${text}`;
    }
    if (endIndex > contentLength(this.lines[endLine])) {
      text = `${text}\n`;
      [endLine, endIndex] = [endLine + 1, 0];
    }
    const replaced = lengthOf(this.between(startLine, startIndex, endLine, endIndex), this.unit);
    return [...this.position(startLine, startIndex), ...this.position(endLine, endIndex), text, replaced];
  }
}

/** Like Array.prototype.splice, without a limit on how many items come in. */
function spliceAll(array, start, removed, items) {
  if (items.length < 10_000) {
    array.splice(start, removed, ...items);
    return;
  }
  const tail = array.splice(start).slice(removed);
  for (const item of items) array.push(item);
  for (const item of tail) array.push(item);
}
