/** Repeatable randomness. */

/**
 * @param {number} seed
 * @returns {() => number} numbers in 0 … 1, 1 excluded (mulberry32)
 */
export function seededRandom(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let value = Math.imul(state ^ (state >>> 15), state | 1);
    value ^= value + Math.imul(value ^ (value >>> 7), value | 61);
    return ((value ^ (value >>> 14)) >>> 0) / 0x100000000;
  };
}

/** An integer in `[low, high]`. */
export const between = (random, low, high) => low + Math.floor(random() * (high - low + 1));

/** @template T @param {() => number} random @param {T[]} items @returns {T} */
export const pick = (random, items) => items[Math.floor(random() * items.length)];
