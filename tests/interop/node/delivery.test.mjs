import assert from 'node:assert/strict';
import { test } from 'node:test';
import { VirtualClock } from './clock.mjs';
import { LIMITS } from './counterpart.mjs';
import { ReceiveHalf, SendHalf } from './delivery.mjs';
import { Exchange } from './exchange.mjs';
import { newTally, withFaults } from './faults.mjs';
import { dataBytes, decodeFrame } from './frames.mjs';
import { seededRandom } from './random.mjs';

const frame = (kind = 'durable', key) => ({ data: {}, bytes: 100, kind, key });
const sender = (options = {}) => new SendHalf({ windowEvents: 8, windowBytes: 1000, ...options });
const receiver = (options = {}) => new ReceiveHalf({ windowEvents: 8, random: () => 0, ...options });
const arrival = (number, digest = 'd') => ({ number, digest, bytes: 10, item: number });
const ackOf = (received, fields = {}) => ({ received, applied: received, durable: received, limit: received + 8, ...fields });

test('the sender stops at the limit, at the window of frames and at the window of bytes', () => {
  const half = sender();
  for (let count = 0; count < 8; count += 1) half.record(frame(), 0);
  assert.equal(half.hasRoom(1), false);
  half.onAck(ackOf(1, { ranges: [[2, 4]], limit: 20 }), 1);
  assert.equal(half.hasRoom(1), true);
  assert.equal(half.hasRoom(401), false);
  half.onAck(ackOf(9, { limit: 9 }), 1);
  assert.equal(half.limit, 20, 'a limit never goes back');
});

test('a durable frame is kept until it is applied, or durable where that means something', () => {
  const plain = sender();
  const journaled = sender({ isJournaled: true });
  for (const half of [plain, journaled]) {
    half.record(frame(), 0);
    half.record(frame('supersedable', 'k'), 0);
    half.onAck({ received: 3, applied: 1, durable: 1, limit: 11 }, 1);
    assert.deepEqual([...half.ring.keys()], [1]);
    half.onAck({ received: 3, applied: 3, durable: 1, limit: 11 }, 1);
  }
  assert.equal(plain.ring.size, 0);
  assert.equal(journaled.ring.size, 1);
});

test('an ACK for a number that was never sent is an error', () => {
  const half = sender();
  half.record(frame(), 0);
  assert.equal(half.onAck(ackOf(3), 0), false);
  assert.equal(half.onAck(ackOf(1, { ranges: [[2, 4]] }), 0), false);
  assert.equal(half.onAck(ackOf(2), 0), true);
});

test('a NACK is answered by the frame, by a SKIP, or by a HEARTBEAT, and not more than once in a round trip', () => {
  const half = sender();
  const first = frame();
  half.record(first, 0);
  half.record(frame('supersedable', 'k'), 0);
  half.record(frame('supersedable', 'k'), 0);
  const answer = half.onNack([[1, 3], [7, 8]], 10);
  assert.deepEqual(answer, { frames: [first.data], skip: [[2, 3]], heartbeat: true });
  assert.equal(answer.frames[0], first.data);
  assert.equal(half.onNack([[1, 2]], 11).frames.length, 0);
  assert.equal(half.onNack([[1, 2]], 100).frames.length, 1);
});

test('the receiver applies in order, each once, and asks for what is missing with growing pauses', () => {
  const half = receiver();
  assert.deepEqual(half.onFrame(arrival(3), 0).ready, []);
  assert.deepEqual(half.takeNack(0).ranges, [[1, 3]]);
  assert.deepEqual(half.takeNack(99).ranges, []);
  assert.deepEqual(half.takeNack(100).ranges, [[1, 3]]);
  assert.deepEqual(half.takeNack(249).ranges, []);
  assert.deepEqual(half.takeNack(250).ranges, [[1, 3]]);
  assert.deepEqual(half.watermarks().ranges, [[3, 4]]);
  assert.deepEqual(half.onFrame(arrival(1), 260).ready, [1]);
  assert.deepEqual(half.onFrame(arrival(2), 260).ready, [2, 3]);
  assert.equal(half.onFrame(arrival(2), 260).verdict, 'duplicate');
  assert.equal(half.onFrame(arrival(2, 'other'), 260).verdict, 'conflict');
  assert.equal(half.onFrame(arrival(4 + 8192), 260).verdict, 'beyond');
});

test('a gap is given up after ten seconds', () => {
  const half = receiver();
  half.learn(2, 0);
  for (let now = 0; now < 10_000; now += 10) assert.equal(half.takeNack(now).isLost, false);
  assert.equal(half.takeNack(12_500).isLost, true);
});

test('a supersedable event ahead of a gap is applied at once, and an older one of its key never', () => {
  const half = receiver();
  assert.deepEqual(half.onFrame({ ...arrival(3), key: 'k' }, 0).ready, [3]);
  assert.deepEqual(half.onFrame({ ...arrival(2), key: 'k' }, 0).ready, []);
  assert.deepEqual(half.onFrame(arrival(1), 0).ready, [1]);
  assert.equal(half.expected, 4);
});

test('a SKIP never undoes what has arrived, and it tells of numbers before it', () => {
  const half = receiver();
  half.onFrame(arrival(3), 0);
  assert.deepEqual(half.onSkip([[2, 4]], 0), []);
  assert.deepEqual(half.onFrame(arrival(1), 0).ready, [1, 3]);
  assert.deepEqual(half.onSkip([[5, 6]], 0), []);
  assert.deepEqual(half.takeNack(0).ranges, [[4, 5]]);
});

/** One end of a lossy pipe between two exchanges. */
class End {
  constructor({ clock, random, encoding }) {
    this.clock = clock;
    this.delivered = [];
    this.encoding = encoding;
    this.exchange = new Exchange({
      encoding,
      digest: 'xxh3-64',
      limits: { ...LIMITS, window_events: 64 },
      clock,
      random,
      keyOf: (message) => message.key,
      transmit: (data) => this.link.send(data),
      deliver: (message) => this.delivered.push(message),
      fail: (code) => assert.fail(code),
    });
  }

  receive(data) {
    const decoded = decodeFrame(this.encoding, ['xxh3-64'], data);
    if (decoded.outcome === 'corrupt') this.exchange.onCorrupt();
    else this.exchange.onFrame(decoded, dataBytes(data));
    this.arm();
  }

  arm() {
    this.clock.cancel(this.timer);
    const at = this.exchange.dueAt();
    if (at === Infinity) return;
    this.timer = this.clock.after(() => {
      this.exchange.tick();
      this.arm();
    }, Math.max(1, at - this.clock.now()));
  }

  say(message, about) {
    this.exchange.enqueue(message, about);
    this.arm();
  }
}

async function talkThrough(seed, encoding) {
  const clock = new VirtualClock();
  const random = seededRandom(seed);
  const tally = newTally();
  const rates = { drop: 0.1, dup: 0.1, reorder: 0.2, corrupt: 0.05, cut: 0 };
  const ends = [new End({ clock, random, encoding }), new End({ clock, random, encoding })];
  ends.forEach((end, index) => {
    const other = ends[1 - index];
    const toOther = () => ({ send: (data) => clock.after(() => other.receive(data), 2), close: () => {} });
    end.link = withFaults(toOther, { rates, random, clock, tally, cut: () => {} })('', '', { message: () => {} });
  });
  for (const end of ends) end.exchange.attach({ expects: 1, next: 1 });
  for (let count = 1; count <= 1500; count += 1) {
    for (const end of ends) {
      end.say({ type: 'edit', count }, { kind: 'durable' });
      end.say({ type: 'cursor', key: `k${count % 3}`, count }, { kind: 'supersedable', key: `k${count % 3}` });
    }
    if (count % 20 === 0) await clock.runUntil(() => false, 5);
  }
  const isDone = () => ends.every((end) => end.exchange.isIdle);
  assert.ok(await clock.runUntil(isDone, 120_000), 'both directions come to rest');
  return { ends, tally };
}

test('through a lossy pipe each durable event arrives once and in order, and the last value of each key arrives', async () => {
  for (const [seed, encoding] of [[1, 'msgpack'], [2, 'json'], [3, 'msgpack']]) {
    const { ends, tally } = await talkThrough(seed, encoding);
    for (const { delivered, exchange } of ends) {
      const edits = delivered.filter(({ type }) => type === 'edit').map(({ count }) => count);
      assert.deepEqual(edits, Array.from({ length: 1500 }, (_, index) => index + 1));
      for (const key of ['k0', 'k1', 'k2']) {
        const counts = delivered.filter((message) => message.key === key).map(({ count }) => count);
        assert.equal(counts.at(-1), key === 'k0' ? 1500 : key === 'k1' ? 1498 : 1499);
        assert.deepEqual(counts, [...counts].sort((left, right) => left - right));
      }
      assert.ok(exchange.sender.retransmitted > 0);
      assert.equal(exchange.sender.underWayBytes, 0);
      assert.equal(exchange.sender.ring.size, 0);
    }
    assert.ok(tally.dropped > 0 && tally.corrupted > 0 && tally.reordered > 0);
  }
});

test('what the other side has given up is handed out once, before it is forgotten', () => {
  const half = sender();
  for (const message of ['a', 'b', 'c']) half.record({ ...frame(), message }, 0);
  assert.deepEqual(half.takeLost([[1, 3]]), ['a', 'b']);
  assert.deepEqual(half.takeLost([[1, 4]]), ['c']);
  assert.equal(half.onAck(ackOf(4, { lost: [[1, 4]] }), 1), true);
  assert.deepEqual(half.takeLost([[1, 4]]), []);
  assert.equal(half.onAck(ackOf(4, { lost: [[4, 5]] }), 1), false, 'it was never sent');
});
