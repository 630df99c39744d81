/**
 * XXH3, 64 bits, seed 0, the default secret [DIG-1].
 *
 * Inputs up to 240 bytes use BigInt, which keeps the formulas readable. Longer ones (whole texts) run their
 * stripe loop on pairs of 32-bit integers, because BigInt would make each hash of a document a noticeable pause.
 */

const SECRET = Uint8Array.from(
  Buffer.from(
    'b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221' +
      'b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8' +
      'a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb' +
      '170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e',
    'hex',
  ),
);
const SECRET_VIEW = new DataView(SECRET.buffer, SECRET.byteOffset, SECRET.byteLength);

const MASK = (1n << 64n) - 1n;
const PRIME32_1 = 0x9e3779b1n;
const PRIME32_2 = 0x85ebca77n;
const PRIME32_3 = 0xc2b2ae3dn;
const PRIME64_1 = 0x9e3779b185ebca87n;
const PRIME64_2 = 0xc2b2ae3d27d4eb4fn;
const PRIME64_3 = 0x165667b19e3779f9n;
const PRIME64_4 = 0x85ebca77c2b2ae63n;
const PRIME64_5 = 0x27d4eb2f165667c5n;
const PRIME_MX1 = 0x165667919e3779f9n;
const PRIME_MX2 = 0x9fb21c651e98df25n;

const STRIPE_BYTES = 64;
const BLOCK_BYTES = 1024;
const SECRET_LIMIT = SECRET.length - STRIPE_BYTES;

const secret64 = (offset) => SECRET_VIEW.getBigUint64(offset, true);
const rotateLeft = (value, bits) => ((value << bits) | (value >> (64n - bits))) & MASK;

/** The two halves of a 128-bit product, folded. */
function multiplyFold(left, right) {
  const product = left * right;
  return (product & MASK) ^ (product >> 64n);
}

function avalanche(value) {
  let hash = value ^ (value >> 37n);
  hash = (hash * PRIME_MX1) & MASK;
  return hash ^ (hash >> 32n);
}

function avalancheXxh64(value) {
  let hash = value ^ (value >> 33n);
  hash = (hash * PRIME64_2) & MASK;
  hash ^= hash >> 29n;
  hash = (hash * PRIME64_3) & MASK;
  return hash ^ (hash >> 32n);
}

function swap64(value) {
  let left = value;
  let result = 0n;
  for (let index = 0; index < 8; index += 1) {
    result = (result << 8n) | (left & 0xffn);
    left >>= 8n;
  }
  return result;
}

function hashUpTo16(bytes, view) {
  const length = bytes.length;
  if (length > 8) {
    const low = view.getBigUint64(0, true) ^ secret64(24) ^ secret64(32);
    const high = view.getBigUint64(length - 8, true) ^ secret64(40) ^ secret64(48);
    return avalanche((BigInt(length) + swap64(low) + high + multiplyFold(low, high)) & MASK);
  }
  if (length >= 4) {
    const first = BigInt(view.getUint32(0, true));
    const last = BigInt(view.getUint32(length - 4, true));
    let hash = ((first << 32n) | last) ^ secret64(8) ^ secret64(16);
    hash ^= rotateLeft(hash, 49n) ^ rotateLeft(hash, 24n);
    hash = (hash * PRIME_MX2) & MASK;
    hash ^= (hash >> 35n) + BigInt(length);
    hash = (hash * PRIME_MX2) & MASK;
    return hash ^ (hash >> 28n);
  }
  if (length > 0) {
    const combined = ((bytes[0] << 16) | (bytes[length >> 1] << 24) | bytes[length - 1] | (length << 8)) >>> 0;
    const flip = (SECRET_VIEW.getUint32(0, true) ^ SECRET_VIEW.getUint32(4, true)) >>> 0;
    return avalancheXxh64(BigInt((combined ^ flip) >>> 0));
  }
  return avalancheXxh64(secret64(56) ^ secret64(64));
}

function mix16(view, offset, secretOffset) {
  return multiplyFold(
    view.getBigUint64(offset, true) ^ secret64(secretOffset),
    view.getBigUint64(offset + 8, true) ^ secret64(secretOffset + 8),
  );
}

function hashUpTo128(length, view) {
  let sum = BigInt(length) * PRIME64_1;
  for (let pair = (length - 1) >> 5; pair >= 0; pair -= 1) {
    sum += mix16(view, 16 * pair, 32 * pair) + mix16(view, length - 16 * (pair + 1), 32 * pair + 16);
  }
  return avalanche(sum & MASK);
}

function hashUpTo240(length, view) {
  let sum = BigInt(length) * PRIME64_1;
  for (let round = 0; round < 8; round += 1) sum += mix16(view, 16 * round, 16 * round);
  sum = avalanche(sum & MASK);
  for (let round = 8; round < length >> 4; round += 1) sum += mix16(view, 16 * round, 16 * (round - 8) + 3);
  sum += mix16(view, length - 16, 136 - 17);
  return avalanche(sum & MASK);
}

/** The eight 64-bit accumulators of a long input, as unsigned halves: [low, high, low, high, …]. */
function initialAccumulators() {
  const start = [PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1];
  const halves = new Uint32Array(16);
  start.forEach((value, index) => {
    halves[2 * index] = Number(value & 0xffffffffn);
    halves[2 * index + 1] = Number(value >> 32n);
  });
  return halves;
}

/** Add one stripe of 64 bytes. Reads go through the view, which need not be aligned. */
function accumulate(halves, view, offset, secretOffset) {
  for (let lane = 0; lane < 8; lane += 1) {
    const low = view.getUint32(offset + 8 * lane, true);
    const high = view.getUint32(offset + 8 * lane + 4, true);
    const left = (low ^ SECRET_VIEW.getUint32(secretOffset + 8 * lane, true)) >>> 0;
    const right = (high ^ SECRET_VIEW.getUint32(secretOffset + 8 * lane + 4, true)) >>> 0;

    // The neighbour gets the plain input.
    const other = 2 * (lane ^ 1);
    const otherLow = halves[other] + low;
    halves[other] = otherLow;
    halves[other + 1] += high + (otherLow > 0xffffffff ? 1 : 0);

    // The lane gets the 64-bit product of the keyed halves, made of 16-bit products that stay exact.
    const leftLow = left & 0xffff;
    const leftHigh = left >>> 16;
    const rightLow = right & 0xffff;
    const rightHigh = right >>> 16;
    const middle = leftHigh * rightLow + ((leftLow * rightLow) >>> 16);
    const middle2 = leftLow * rightHigh + (middle % 0x10000);
    const productHigh = leftHigh * rightHigh + Math.floor(middle / 0x10000) + Math.floor(middle2 / 0x10000);
    const laneLow = halves[2 * lane] + (Math.imul(left, right) >>> 0);
    halves[2 * lane] = laneLow;
    halves[2 * lane + 1] += productHigh + (laneLow > 0xffffffff ? 1 : 0);
  }
}

function scramble(halves) {
  const prime = Number(PRIME32_1);
  for (let lane = 0; lane < 8; lane += 1) {
    const high = halves[2 * lane + 1];
    const low = (halves[2 * lane] ^ (high >>> 15) ^ SECRET_VIEW.getUint32(SECRET_LIMIT + 8 * lane, true)) >>> 0;
    const keyedHigh = (high ^ SECRET_VIEW.getUint32(SECRET_LIMIT + 8 * lane + 4, true)) >>> 0;
    const product = BigInt(low) * PRIME32_1;
    halves[2 * lane] = Number(product & 0xffffffffn);
    halves[2 * lane + 1] = Number(product >> 32n) + (Math.imul(keyedHigh, prime) >>> 0);
  }
}

function hashLong(length, view) {
  const halves = initialAccumulators();
  const blocks = Math.floor((length - 1) / BLOCK_BYTES);
  for (let block = 0; block < blocks; block += 1) {
    for (let stripe = 0; stripe < 16; stripe += 1) {
      accumulate(halves, view, block * BLOCK_BYTES + stripe * STRIPE_BYTES, 8 * stripe);
    }
    scramble(halves);
  }
  const rest = blocks * BLOCK_BYTES;
  const stripes = Math.floor((length - 1 - rest) / STRIPE_BYTES);
  for (let stripe = 0; stripe < stripes; stripe += 1) {
    accumulate(halves, view, rest + stripe * STRIPE_BYTES, 8 * stripe);
  }
  accumulate(halves, view, length - STRIPE_BYTES, SECRET_LIMIT - 7);

  const lane = (index) => (BigInt(halves[2 * index + 1]) << 32n) | BigInt(halves[2 * index]);
  let sum = BigInt(length) * PRIME64_1;
  for (let pair = 0; pair < 4; pair += 1) {
    sum += multiplyFold(lane(2 * pair) ^ secret64(11 + 16 * pair), lane(2 * pair + 1) ^ secret64(19 + 16 * pair));
  }
  return avalanche(sum & MASK);
}

/**
 * @param {Uint8Array} bytes
 * @returns {bigint} 64 bits; canonical order is big-endian
 */
export function xxh3(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const length = bytes.length;
  if (length <= 16) return hashUpTo16(bytes, view);
  if (length <= 128) return hashUpTo128(length, view);
  if (length <= 240) return hashUpTo240(length, view);
  return hashLong(length, view);
}
