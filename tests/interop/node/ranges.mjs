/** Half-open ranges of numbers, as they travel [CNV-2]. */

/** @typedef {[number, number]} Range */

/**
 * Rising numbers as ranges.
 *
 * @param {Iterable<number>} numbers
 * @returns {Range[]}
 */
export function toRanges(numbers) {
  /** @type {Range[]} */
  const ranges = [];
  for (const number of numbers) {
    const last = ranges.at(-1);
    if (last && last[1] === number) last[1] = number + 1;
    else ranges.push([number, number + 1]);
  }
  return ranges;
}

/**
 * The numbers of ranges within `[low, high)`. The bounds keep a wild range from becoming a long loop.
 *
 * @param {Range[]} ranges
 */
export function* numbersIn(ranges, low, high) {
  for (const [start, stop] of ranges) {
    for (let number = Math.max(start, low); number < Math.min(stop, high); number += 1) yield number;
  }
}

/** @param {unknown} ranges */
export function areRanges(ranges) {
  const isNumber = (value) => Number.isSafeInteger(value) && value >= 0;
  return (
    Array.isArray(ranges) &&
    ranges.every((range) => Array.isArray(range) && isNumber(range[0]) && isNumber(range[1]) && range[0] < range[1])
  );
}

/** Cut into groups, each small enough for one message. */
export function* groupsOf(items, size) {
  for (let start = 0; start < items.length; start += size) yield items.slice(start, start + size);
}
