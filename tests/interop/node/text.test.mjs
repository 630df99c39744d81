import assert from 'node:assert/strict';
import { test } from 'node:test';
import { cutText } from './pieces.mjs';
import { between, pick, seededRandom } from './random.mjs';
import { characterOfIndex, hashOf, indexOfCharacter, lengthOf, Refusal, splitLines, Text } from './text.mjs';

const PLACES = ['a', 'b', '\n', '\r', '\r\n', 'é', '日', '😀', '\u2028', '\u0085', '\u000b'];
const UNITS = ['utf-16', 'utf-8', 'utf-32'];
const randomText = (random, count) => Array.from({ length: count }, () => pick(random, PLACES)).join('');

test('lines end at \\n, \\r\\n and \\r, and nowhere else', () => {
  assert.deepEqual(splitLines(''), ['']);
  assert.deepEqual(splitLines('a\r\nb\rc\n\n'), ['a\r\n', 'b\r', 'c\n', '\n', '']);
  assert.deepEqual(splitLines('a\u2028b\u0085c\u000bd'), ['a\u2028b\u0085c\u000bd']);
  assert.deepEqual(splitLines('\n\r'), ['\n', '\r', '']);
});

test('characters count the unit, and what is not a place is refused', () => {
  const line = 'é😀x\r\n';
  const places = { 'utf-16': [0, 1, 3, 4], 'utf-8': [0, 2, 6, 7], 'utf-32': [0, 1, 2, 3] };
  for (const unit of UNITS) {
    assert.deepEqual(places[unit].map((character) => indexOfCharacter(line, character, unit)), [0, 1, 3, 4]);
    assert.deepEqual([0, 1, 3, 4].map((index) => characterOfIndex(line, index, unit)), places[unit]);
    for (let character = 0; character < 12; character += 1) {
      if (!places[unit].includes(character)) assert.equal(indexOfCharacter(line, character, unit), -1);
    }
  }
});

const refusedWith = (code) => (error) => error instanceof Refusal && error.code === code;

test('an edit applies whole or not at all', () => {
  const text = new Text('one\ntwo', 'utf-16');
  assert.throws(() => text.apply([[0, 0, 0, 1, 'X'], [5, 0, 5, 0, 'y']]), refusedWith('bad_position'));
  assert.equal(text.toString(), 'one\ntwo');
  assert.equal(text.length, 7);
  assert.throws(() => text.apply([[1, 1, 1, 0, '']]), refusedWith('bad_change'));
  assert.throws(() => text.apply([[0, 0, 0, 1, '', 2]]), refusedWith('old_len_mismatch'));
});

test('in sim, insertions go before a deletion at the same place and keep their order', () => {
  const text = new Text('abcdef', 'utf-16');
  text.apply([[0, 1, 0, 3, '-'], [0, 1, 0, 1, '1'], [0, 3, 0, 3, '3'], [0, 1, 0, 1, '2']], 'sim');
  assert.equal(text.toString(), 'a12-3def');
  assert.throws(() => text.apply([[0, 1, 0, 3, ''], [0, 2, 0, 2, 'x']], 'sim'), refusedWith('bad_change'));
  assert.throws(() => text.apply([[0, 1, 0, 3, ''], [0, 2, 0, 4, '']], 'sim'), refusedWith('bad_change'));
});

test('any patch of code points gives the text that plain splicing gives, in every unit', () => {
  for (const unit of UNITS) {
    const random = seededRandom(7);
    const start = randomText(random, 30);
    const text = new Text(start, unit);
    const copy = new Text(start, unit);
    let points = [...start];
    for (let round = 0; round < 3000; round += 1) {
      const offset = between(random, 0, points.length);
      const deleted = Math.min(points.length - offset, points.length > 80 ? 20 : between(random, 0, 3));
      const inserted = randomText(random, between(random, 0, 3));
      const change = text.changeOfPoints(offset, deleted, inserted);
      text.apply([change]);
      copy.apply([change], 'sim');
      points.splice(offset, deleted, ...inserted);
      const wanted = points.join('');
      assert.equal(text.toString(), wanted);
      assert.deepEqual(text.lines, splitLines(wanted));
      assert.deepEqual(text.points, text.lines.map((line) => [...line].length));
      assert.equal(text.length, lengthOf(wanted, unit));
      assert.equal(copy.toString(), wanted);
    }
  }
});

test('hashes name their algorithm', () => {
  assert.equal(hashOf('', 'xxh3-64'), 'xxh3-64:2d06800538d394c2');
  assert.equal(hashOf('', 'sha-256'), 'sha-256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855');
});

test('pieces hold whole characters, fit, and make the text', () => {
  const text = '😀é\u0001"a'.repeat(500);
  const pieces = cutText(text, { textBytes: 101, frameBytes: 120, isJson: true });
  assert.equal(pieces.join(''), text);
  for (const piece of pieces) {
    assert.ok(piece.isWellFormed());
    assert.ok(Buffer.byteLength(piece) <= 101);
    assert.ok(Buffer.byteLength(JSON.stringify(piece)) - 2 <= 120);
  }
  assert.deepEqual(cutText('', { textBytes: 1, frameBytes: 1, isJson: false }), ['']);
});
