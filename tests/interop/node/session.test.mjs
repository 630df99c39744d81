import assert from 'node:assert/strict';
import { test } from 'node:test';
import { VirtualClock } from './clock.mjs';
import { Counterpart } from './counterpart.mjs';
import { newTally, withFaults } from './faults.mjs';
import { Observer } from './observer.mjs';
import { Producer } from './producer.mjs';
import { seededRandom } from './random.mjs';
import { playRandom } from './script.mjs';

const NO_FAULTS = { drop: 0, dup: 0, reorder: 0, corrupt: 0, cut: 0 };
const FAULTS = { drop: 0.02, dup: 0.02, reorder: 0.02, corrupt: 0.01, cut: 0.001 };

function world({ seed = 1, rates = NO_FAULTS, encoding = 'msgpack', unit = 'utf-16', limits = {} } = {}) {
  const clock = new VirtualClock();
  const random = seededRandom(seed);
  const server = new Counterpart({ clock, random, limits });
  const tally = newTally();
  const options = (role) => ({
    url: '',
    role,
    encoding,
    digests: ['xxh3-64', 'crc32'],
    units: [unit],
    hash: 'xxh3-64',
    name: 'test',
    clock,
    random,
    connect: withFaults(server.connect, { rates, random, clock, tally, cut: () => server.cut() }),
  });
  return { clock, random, server, tally, producer: new Producer(options('produce')), observer: new Observer(options('observe')) };
}

async function runScript({ clock, random, producer, observer }, actions) {
  const outcome = { isDone: false, error: null };
  const script = async () => {
    await producer.start();
    observer.subscribe(1, producer.session.welcome.session);
    producer.onSession = (session) => observer.subscribe(1, session);
    observer.start();
    await playRandom(producer, random, { actions, paceMs: 3 });
    await producer.settled();
  };
  script().then(
    () => {
      outcome.isDone = true;
    },
    (error) => {
      outcome.error = error;
    },
  );
  await clock.runUntil(() => outcome.isDone || outcome.error, 600_000);
  if (outcome.error) throw outcome.error;
  assert.ok(outcome.isDone, 'the script ends');
}

const textsOf = (documents) =>
  Object.fromEntries([...documents].map(([alias, { text }]) => [alias, text?.toString()]).sort());

async function assertSame({ clock, server, producer, observer }) {
  const session = () => producer.session.welcome.session;
  const isSame = () => {
    const feed = observer.feed(1, session());
    return feed?.isSynced && JSON.stringify(textsOf(feed.documents)) === JSON.stringify(textsOf(producer.documents));
  };
  assert.deepEqual(textsOf(server.sessions.get(session()).documents), textsOf(producer.documents));
  assert.ok(await clock.runUntil(isSame, 60_000), 'the observer catches up');
  assert.deepEqual(observer.problems, []);
}

test('without faults everything arrives and nothing is refused or sent twice', async () => {
  const all = world();
  await runScript(all, 400);
  await assertSame(all);
  assert.deepEqual([...all.producer.session.errors.keys()], []);
  assert.equal(all.producer.counts.requests, 0);
});

for (const [seed, encoding, unit] of [[1, 'msgpack', 'utf-16'], [2, 'json', 'utf-8'], [3, 'msgpack', 'utf-32'], [4, 'json', 'utf-16']]) {
  test(`through faults the server and the observer end with the producer's texts (${encoding}, ${unit})`, async () => {
    const all = world({ seed, rates: FAULTS, encoding, unit });
    await runScript(all, 600);
    await assertSame(all);
    assert.deepEqual([...all.producer.session.errors.keys()], []);
    assert.equal(all.producer.session.counts.fresh, 1, 'no resume was rejected');
    assert.ok(all.tally.dropped > 0 && all.tally.corrupted > 0 && all.tally.cuts > 0);
    assert.ok(all.producer.session.counts.resumes > 0);
  });
}

test('a server that has forgotten the session is told everything anew', async () => {
  const all = world();
  await runScript(all, 50);
  all.server.sessions.clear();
  all.server.cut();
  assert.ok(await all.clock.runUntil(() => all.producer.session.counts.fresh === 2, 5_000));
  assert.equal(all.producer.session.welcome.verdict, 'rejected');
  assert.ok(await all.clock.runUntil(() => all.producer.session.exchange.isIdle, 5_000));
  await assertSame(all);
});

test('a copy that diverged is healed by one snapshot', async () => {
  const all = world();
  await runScript(all, 50);
  const document = all.server.sessions.get('s1').documents.get(2);
  document.text.reset(`${document.text.toString()}damage`);
  all.producer.editPoints(2, [[0, 0, 'x']]);
  all.producer.editPoints(2, [[0, 0, 'y']]);
  assert.ok(await all.clock.runUntil(() => all.producer.counts.requests === 1 && all.producer.session.exchange.isIdle, 5_000));
  await assertSame(all);
  assert.equal(all.producer.session.errors.get('length_mismatch').count, 1);
});

test('HELLO is repeated, the same bytes, until WELCOME comes', async () => {
  const { clock, producer } = world();
  const sent = [];
  producer.session.options.connect = (_url, _protocol, handlers) => {
    clock.after(() => handlers.open(), 1);
    return { send: (data) => sent.push(data), close: () => {} };
  };
  producer.start();
  await clock.runUntil(() => false, 1_000);
  assert.equal(sent.length, 4);
  for (const data of sent) assert.deepEqual(data, sent[0]);
});

/** Which of a list of close codes make a session connect again, and when. */
async function reconnectAfter(code) {
  const { clock, producer } = world();
  producer.start();
  await clock.runUntil(() => producer.session.state === 'established', 1_000);
  const before = clock.now();
  producer.session.random = () => 0.5;
  producer.session.onClosed(code);
  await clock.runUntil(() => producer.session.counts.connections > 1, 20_000);
  return producer.session.counts.connections > 1 ? clock.now() - before : null;
}

test('the close code decides whether and when the client connects again', async () => {
  assert.ok((await reconnectAfter(1006)) < 5);
  assert.ok((await reconnectAfter(4200)) < 5);
  assert.ok((await reconnectAfter(4102)) >= 100);
  for (const code of [1008, 4000, 4003, 4010]) assert.equal(await reconnectAfter(code), null);
  assert.ok((await reconnectAfter(4009)) < 5);
});

/** A producer, settled, whose next messages the server will give up. */
async function withLoss(prepare) {
  const all = world();
  const { clock, producer, server } = all;
  await runScript(all, 0);
  const exchange = server.sessions.get(producer.session.welcome.session).exchange;
  const first = producer.session.exchange.sender.next;
  prepare(producer);
  const shown = [];
  const { show } = Object.getPrototypeOf(server.sessions.get('s1'));
  server.sessions.get('s1').show = function (event, count) {
    shown.push(event.type);
    show.call(this, event, count);
  };
  const stop = producer.session.exchange.sender.next;
  const lost = [[first, stop]];
  exchange.onSkip({ ranges: lost });
  exchange.tell({ type: 'ack', ...exchange.receiver.watermarks(), lost });
  assert.ok(await clock.runUntil(() => producer.session.exchange.isIdle && shown.length > 0, 5_000));
  return { ...all, shown };
}

test('what the server has given up and no snapshot holds is sent again', async () => {
  const alias = 1;
  const { shown, server, producer } = await withLoss((producer) => {
    producer.open('file:///new', 'text');
    producer.mention(alias, { range: [0, 0, 0, 0] });
    producer.save(alias);
    producer.show(alias, 'cursor', { position: [0, 0] });
    producer.openDesign({ uri: 'design:///1', tool: { name: 't' }, file_name: 'f', pages: [] });
    producer.selectDesign(producer.lastAlias, { page: 'p', nodes: [], total: 0 });
  });
  for (const type of ['open', 'mention', 'snapshot', 'save', 'cursor', 'design.open', 'design.selection']) {
    assert.equal(shown.filter((each) => each === type).length >= 1, true, type);
  }
  assert.equal(shown.filter((each) => each === 'mention').length, 1);
  assert.deepEqual(textsOf(server.sessions.get('s1').documents), textsOf(producer.documents));
});
