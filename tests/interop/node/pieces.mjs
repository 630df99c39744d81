/** Cutting a text into parts (section 10.2). */

/**
 * Cut a text into pieces that fit a `part`: by their UTF-8, and by what their frame takes, since JSON makes control
 * characters, quotes and backslashes longer. A surrogate pair is never cut.
 *
 * @param {string} text
 * @param {{textBytes: number, frameBytes: number, isJson: boolean}} limits `frameBytes` is what is left for the text
 * @returns {string[]} at least one piece
 */
export function cutText(text, { textBytes, frameBytes, isJson }) {
  const pieces = [];
  let start = 0;
  let bytes = 0;
  let encoded = 0;
  for (let index = 0; index < text.length; ) {
    const point = text.codePointAt(index);
    const size = utf8Bytes(point);
    const inFrame = isJson ? jsonBytes(point, size) : size;
    if (bytes + size > textBytes || encoded + inFrame > frameBytes) {
      pieces.push(text.slice(start, index));
      start = index;
      bytes = 0;
      encoded = 0;
    }
    bytes += size;
    encoded += inFrame;
    index += point > 0xffff ? 2 : 1;
  }
  pieces.push(text.slice(start));
  return pieces;
}

function utf8Bytes(point) {
  if (point < 0x80) return 1;
  if (point < 0x800) return 2;
  return point < 0x10000 ? 3 : 4;
}

function jsonBytes(point, size) {
  if (point === 0x22 || point === 0x5c) return 2;
  return point < 0x20 ? 6 : size;
}
