import assert from 'node:assert/strict';
import { test } from 'node:test';
import { decode, encode } from './msgpack.mjs';

const EDGES = [0, 1, 127, 128, 255, 256, 65_535, 65_536, 2 ** 32 - 1, 2 ** 32, Number.MAX_SAFE_INTEGER];
const NEGATIVE = [-1, -32, -33, -128, -129, -32_768, -32_769, -(2 ** 31), -(2 ** 31) - 1, Number.MIN_SAFE_INTEGER];

test('numbers come back at both sides of every width', () => {
  for (const value of [...EDGES, ...NEGATIVE, 0.5, -2.25, 1e300]) assert.equal(decode(encode(value)), value);
});

test('strings, arrays, maps and binary come back at both sides of every length', () => {
  for (const length of [0, 1, 15, 16, 31, 32, 255, 256, 65_535, 65_536]) {
    const text = 'é'.repeat(length);
    assert.equal(decode(encode(text)), text);
    const items = Array.from({ length }, (_, index) => index);
    assert.deepEqual(decode(encode(items)), items);
    const map = Object.fromEntries(items.map((index) => [`k${index}`, index]));
    assert.deepEqual(decode(encode(map)), map);
    assert.deepEqual(decode(encode(new Uint8Array(length))), new Uint8Array(length));
  }
});

test('integers take the shortest form', () => {
  assert.deepEqual([...encode({ a: 1, b: [true, null, 'x'] })], [0x82, 0xa1, 0x61, 1, 0xa1, 0x62, 0x93, 0xc3, 0xc0, 0xa1, 0x78]);
});

test('a field without a value is left out', () => {
  assert.deepEqual(decode(encode({ a: undefined, b: 1 })), { b: 1 });
});

test('a byte order mark and a key named __proto__ are data', () => {
  assert.equal(decode(encode('\ufeffx')), '\ufeffx');
  assert.deepEqual(Object.keys(decode(new Uint8Array([0x81, 0xa9, ...Buffer.from('__proto__'), 1]))), ['__proto__']);
});

test('what is not one whole value of the protocol fails', () => {
  const bad = {
    empty: [],
    'cut short': [0xa5, 0x61],
    'bytes behind': [0x01, 0x02],
    'never used type': [0xc1],
    extension: [0xd4, 1, 2],
    'integer above 2^53-1': [0xcf, 0, 0x20, 0, 0, 0, 0, 0, 0],
    'key that is no string': [0x81, 1, 1],
    'invalid utf-8': [0xa1, 0xff],
    'surrogate in utf-8': [0xa3, 0xed, 0xa0, 0x80],
    'endless nesting': new Array(1000).fill(0x91),
  };
  for (const [name, bytes] of Object.entries(bad)) assert.throws(() => decode(Uint8Array.from(bytes)), undefined, name);
});
