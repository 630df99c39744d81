/**
 * Play an editing session against a server, through faults, and verify that the server and an observer end with the
 * same texts. Prints one line of JSON; the exit status is 0 only when everything was verified.
 */

import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { realClock, sleep } from './clock.mjs';
import { newTally, parseRates, startRelay, withFaults } from './faults.mjs';
import { connectWebSocket } from './link.mjs';
import { Observer } from './observer.mjs';
import { Producer } from './producer.mjs';
import { seededRandom } from './random.mjs';
import { playRandom, playTrace, readTrace } from './script.mjs';

const POLL_MS = 50;
const SUBSCRIPTION = 1;

const USAGE = `node main.mjs --url ws://127.0.0.1:PORT/v1/stream --token-file FILE (--trace FILE.json.gz | --random N)
  [--transactions N] [--encoding msgpack|json] [--digest xxh3-64|crc32] [--unit utf-16|utf-8|utf-32]
  [--hash xxh3-64|sha-256] [--faults drop=0.02,dup=0.02,reorder=0.02,corrupt=0.01,cut=0.002] [--seed N] [--pace MS]
  [--observe] [--observe-unit UNIT] [--observe-encoding ENCODING] [--http http://127.0.0.1:PORT] [--deadline SECONDS]`;

function readOptions() {
  const { values } = parseArgs({
    options: {
      url: { type: 'string' },
      http: { type: 'string' },
      'token-file': { type: 'string' },
      trace: { type: 'string' },
      transactions: { type: 'string', default: 'Infinity' },
      random: { type: 'string' },
      encoding: { type: 'string', default: 'msgpack' },
      digest: { type: 'string', default: 'xxh3-64' },
      unit: { type: 'string', default: 'utf-16' },
      hash: { type: 'string', default: 'xxh3-64' },
      faults: { type: 'string', default: '' },
      seed: { type: 'string', default: '1' },
      pace: { type: 'string', default: '0' },
      observe: { type: 'boolean', default: false },
      'observe-unit': { type: 'string' },
      'observe-encoding': { type: 'string' },
      deadline: { type: 'string', default: '120' },
      help: { type: 'boolean', default: false },
    },
  });
  if (values.help) {
    console.log(USAGE);
    process.exit(0);
  }
  if (!values.url || !values['token-file'] || (!values.trace && !values.random)) throw new Error(USAGE);
  if (typeof WebSocket === 'undefined') throw new Error('this Node has no WebSocket: use 22 or newer, or --experimental-websocket');
  return values;
}

/** The options of one session, with faults of its own between it and its socket. */
async function sessionOptions(options, { role, unit, encoding, seed, token, tally }) {
  const rates = parseRates(options.faults);
  let { url } = options;
  let cut = () => {};
  let stop = () => {};
  if (rates.cut > 0) {
    // The relay is what can be cut; it is plain TCP, so only ws:// goes through it.
    const target = new URL(url);
    const relay = await startRelay(target.hostname.replace(/^\[|\]$/g, ''), Number(target.port || 80));
    target.hostname = '127.0.0.1';
    target.port = String(relay.port);
    url = target.href;
    cut = relay.cut;
    stop = relay.close;
  }
  const connect = withFaults(connectWebSocket, { rates, random: seededRandom(seed), clock: realClock, tally, cut });
  const digests = options.digest === 'crc32' ? ['crc32', 'xxh3-64'] : ['xxh3-64', 'crc32'];
  return {
    session: {
      url,
      token,
      role,
      encoding,
      digests,
      units: [unit, ...['utf-16', 'utf-8', 'utf-32'].filter((other) => other !== unit)],
      hash: options.hash,
      name: 'streamctx interop node',
      connect,
      random: seededRandom(seed + 1),
    },
    stop,
  };
}

/** Repeat until there is nothing to complain about; the deadline of the run ends what never fits. */
async function eventually(complaints) {
  const seen = { last: [] };
  state.waitingFor = seen;
  for (;;) {
    seen.last = await complaints();
    if (seen.last.length === 0) break;
    await sleep(realClock, POLL_MS);
  }
  state.waitingFor = null;
}

/** What the observer holds differently. */
function observerComplaints(observer, producer) {
  const feed = observer.feed(SUBSCRIPTION, producer.session.welcome.session);
  if (!feed?.isSynced) return ['the feed is not synced'];
  const complaints = [];
  for (const [alias, { text, version }] of producer.documents) {
    const seen = feed.documents.get(alias);
    if (!seen?.text || seen.stale) complaints.push(`document ${alias} is ${seen?.stale ? 'stale' : 'not there'}`);
    else if (seen.text.toString() !== text.toString()) complaints.push(`document ${alias} differs`);
    else if (seen.version !== version) complaints.push(`document ${alias} has version ${seen.version}, not ${version}`);
  }
  for (const alias of feed.documents.keys()) if (!producer.documents.has(alias)) complaints.push(`document ${alias} is extra`);
  return [...complaints, ...presenceComplaints(feed, producer)];
}

/** The last value of each key is always sent [COA-1, OBS-7]. Positions are compared only where the unit is the same. */
function presenceComplaints(feed, producer) {
  const complaints = [];
  for (const { presence } of producer.documents.values()) {
    for (const [key, { message }] of presence) {
      const seen = feed.presence.get(key);
      if (!seen) complaints.push(`${key} is not there`);
      else if (seen.version !== message.version) complaints.push(`${key} is of version ${seen.version}, not ${message.version}`);
    }
  }
  return complaints;
}

/** What the server's copies hold differently. */
async function serverComplaints(producer, { http, token }) {
  const complaints = [];
  for (const [alias, { text }] of producer.documents) {
    const url = `${http}/v1/sessions/${encodeURIComponent(producer.session.welcome.session)}/documents/${alias}`;
    const response = await fetch(url, { headers: { authorization: `Bearer ${token}` } });
    const body = await response.json().catch(() => ({}));
    if (response.status !== 200) complaints.push(`document ${alias}: status ${response.status}`);
    else if (body.text !== text.toString()) complaints.push(`document ${alias}: the server's text differs`);
  }
  return complaints;
}

function httpBase(options) {
  if (options.http) return options.http.replace(/\/$/, '');
  const url = new URL(options.url);
  return `${url.protocol === 'wss:' ? 'https' : 'http'}://${url.host}`;
}

const state = { producer: null, observer: null, tally: newTally(), waitingFor: null };

function report(verified, reason) {
  const { producer, observer, tally } = state;
  const session = producer?.session;
  const totals = session?.collectTotals() ?? {};
  const other = observer?.session.collectTotals() ?? {};
  const sum = (name) => (totals[name] ?? 0) + (other[name] ?? 0);
  const counts = (name) => (session?.counts[name] ?? 0) + (observer?.session.counts[name] ?? 0);
  return {
    verified,
    reason,
    edits: producer?.counts.edits ?? 0,
    retransmitted: sum('retransmitted'),
    nacks: sum('nacks'),
    skipped: sum('skipped'),
    corrupt: counts('corrupt'),
    duplicates: sum('duplicates'),
    resumes: counts('resumes'),
    sessions: counts('fresh'),
    snapshots: producer?.counts.snapshots ?? 0,
    snapshot_requests: producer?.counts.requests ?? 0,
    errors: Object.fromEntries(session?.errors ?? []),
    observer: observer ? { ...observer.counts, problems: observer.problems, errors: Object.fromEntries(observer.session.errors) } : undefined,
    faults: tally,
  };
}

function finish(verified, reason) {
  console.log(JSON.stringify(report(verified, reason)));
  process.exit(verified ? 0 : 1);
}

async function run(options) {
  const token = readFileSync(options['token-file'], 'utf8').trim();
  const seed = Number(options.seed);
  const { encoding, unit } = options;
  const common = { token, tally: state.tally };
  const producing = await sessionOptions(options, { ...common, role: 'produce', unit, encoding, seed: 1000 * seed });
  const producer = new Producer(producing.session);
  state.producer = producer;
  await producer.start();
  if (options.observe) {
    const observing = await sessionOptions(options, {
      ...common,
      role: 'observe',
      unit: options['observe-unit'] ?? unit,
      encoding: options['observe-encoding'] ?? encoding,
      seed: 1000 * seed + 500,
    });
    const observer = new Observer(observing.session);
    state.observer = observer;
    observer.subscribe(SUBSCRIPTION, producer.session.welcome.session);
    // After a rejected resume there is another session to watch.
    producer.onSession = (session) => observer.subscribe(SUBSCRIPTION, session);
    observer.start();
  }

  const paceMs = Number(options.pace);
  if (options.trace) {
    await playTrace(producer, readTrace(options.trace), { transactionsMax: Number(options.transactions), paceMs });
  } else {
    await playRandom(producer, seededRandom(seed), { actions: Number(options.random), paceMs });
  }
  await producer.settled();
  await eventually(() => serverComplaints(producer, { http: httpBase(options), token }));
  if (state.observer) {
    await eventually(() => observerComplaints(state.observer, producer));
    if (state.observer.counts.problems > 0) return finish(false, 'the feed broke its rules');
  }
  // Take the counts before the end; a clean end tells the server to forget the sessions.
  const line = JSON.stringify(report(true, undefined));
  producer.end();
  state.observer?.session.end();
  await sleep(realClock, 100);
  console.log(line);
  process.exit(0);
}

try {
  const options = readOptions();
  setTimeout(() => finish(false, `not done in time; waiting for ${state.waitingFor?.last.join(', ') ?? 'the session'}`), 1000 * Number(options.deadline));
  await run(options);
} catch (error) {
  finish(false, error.stack);
}
