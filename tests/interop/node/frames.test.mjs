import assert from 'node:assert/strict';
import { test } from 'node:test';
import { decodeFrame, encodeBody, encodeFrame, flipBit } from './frames.mjs';

const ENCODINGS = ['msgpack', 'json'];
const MESSAGE = { type: 'edit', document: 1, changes: [[0, 0, 0, 0, 'é😀\r\n']] };

const frameOf = (encoding, digest, head = { sequence: 7, stream: 3 }) =>
  encodeFrame(digest, head, encodeBody(encoding, MESSAGE));

test('a frame comes back with its head, in both encodings and both digests', () => {
  for (const encoding of ENCODINGS) {
    for (const digest of ['crc32', 'xxh3-64']) {
      const frame = decodeFrame(encoding, [digest], frameOf(encoding, digest));
      assert.equal(frame.outcome, 'frame');
      assert.deepEqual(frame.message, MESSAGE);
      assert.equal(frame.sequence, 7);
      assert.equal(frame.stream, 3);
      if (digest === 'crc32') assert.match(frame.digest, /^00000000/);
    }
  }
});

test('every flipped bit is found', () => {
  for (const encoding of ENCODINGS) {
    const data = frameOf(encoding, 'xxh3-64');
    for (let where = 0; where < 1; where += 0.01) {
      assert.equal(decodeFrame(encoding, ['xxh3-64', 'crc32'], flipBit(data, where)).outcome, 'corrupt');
    }
  }
});

test('the binary header is laid out as the specification says', () => {
  const bytes = encodeFrame('crc32', { sequence: 258, stream: 1 }, encodeBody('msgpack', { type: 'x' }));
  assert.deepEqual([...bytes.subarray(8, 24)], [1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 2]);
});

/** A text frame with a digest that fits. */
function sealed(rest) {
  const whole = encodeFrame('crc32', {}, '{}');
  assert.equal(typeof whole, 'string');
  const body = rest.replace(/^\S+ \S+ /, '');
  const [sequence, stream] = rest.split(' ');
  return encodeFrame('crc32', { sequence, stream }, body);
}

test('a head without its form is fatal, a body without its form fails alone', () => {
  for (const rest of ['01 0 {}', '-1 0 {}', 'x 0 {}', '1 00 {}']) {
    assert.deepEqual(decodeFrame('json', ['crc32'], sealed(rest)), { outcome: 'fatal', code: 'bad_frame', close: 4102 });
  }
  for (const body of ['{}', '[]', '{"type":1}', '{', '{"type":"x","t":"\\ud800"}']) {
    const frame = decodeFrame('json', ['crc32'], sealed(`1 0 ${body}`));
    assert.equal(frame.outcome, 'frame');
    assert.equal(frame.message, null);
  }
  const pair = decodeFrame('json', ['crc32'], sealed('1 0 {"type":"x","t":"\\ud83d\\ude00"}'));
  assert.equal(pair.message.t, '😀');
});

test('a number above 2^53-1 is fatal', () => {
  const frame = decodeFrame('json', ['crc32'], sealed('9007199254740992 0 {"type":"x"}'));
  assert.equal(frame.code, 'bad_sequence');
});

test('what is too short for a digest is corrupt, and the wrong kind of message is fatal', () => {
  assert.equal(decodeFrame('msgpack', ['crc32'], new Uint8Array(7)).outcome, 'corrupt');
  assert.equal(decodeFrame('json', ['crc32'], 'abc').outcome, 'corrupt');
  assert.equal(decodeFrame('json', ['crc32'], new Uint8Array(30)).code, 'bad_frame');
  assert.equal(decodeFrame('msgpack', ['crc32'], 'abc').code, 'bad_frame');
});
