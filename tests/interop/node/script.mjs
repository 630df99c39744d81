/** What the editor does: a recorded editing trace, or a seeded random session over several documents. */

import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';
import { sleep } from './clock.mjs';
import { between, pick } from './random.mjs';
import { Refusal } from './text.mjs';

/**
 * @typedef {{startContent: string, endContent: string, txns: {patches: [number, number, string][]}[]}} Trace
 * @typedef {import('./producer.mjs').Producer} Producer
 */

const DOCUMENTS_MAX = 6;
const POINTS_MAX = 200_000;
const PLACES = ['a', 'b', 'e', 'x', ' ', ' ', '(', '"', '\\', '\t', '\n', '\n', '\r\n', '\r', 'é', 'ß', '日', '本', '😀', '𝒳',
  '👩‍💻', '\u0085', '\u2028', '\u000b', '\u0000', '\ufeff', 'e\u0301'];

/** @param {string} path @returns {Trace} */
export function readTrace(path) {
  return JSON.parse(gunzipSync(readFileSync(path)).toString('utf8'));
}

/**
 * Play a trace: each transaction is one edit event with a cursor event behind it.
 *
 * @param {Producer} producer
 * @param {Trace} trace
 * @param {{transactionsMax: number, paceMs: number}} options
 */
export async function playTrace(producer, trace, { transactionsMax, paceMs }) {
  const alias = producer.open('file:///trace/document.txt', trace.startContent, 'plaintext');
  let played = 0;
  for (const { patches } of trace.txns) {
    if (played >= transactionsMax) break;
    played += 1;
    if (patches.length === 0) continue;
    await producer.ready();
    const last = producer.editPoints(alias, patches);
    producer.show(alias, 'cursor', { position: endOfChange(producer.documents.get(alias).text, last) });
    if (paceMs > 0) await sleep(producer.clock, paceMs);
  }
  producer.save(alias);
  const text = producer.documents.get(alias).text.toString();
  if (played === trace.txns.length && text !== trace.endContent) throw new Error('the trace does not end as it should');
}

/** Where the cursor is after a change: the end of what it inserted. A place that has gone is left at its line's start. */
function endOfChange(text, [startLine, startCharacter, , , inserted]) {
  const [line, index] = text.resolve(startLine, Math.min(startCharacter, text.position(startLine, 0)[1]));
  const lines = inserted.split(/\r\n|\r|\n/);
  if (lines.length > 1) return [Math.min(line + lines.length - 1, text.lines.length - 1), 0];
  const end = text.resolve(startLine, startCharacter)[1] + inserted.length;
  const content = text.lines[line].replace(/[\r\n]+$/, '').length;
  return text.position(line, Math.min(Math.max(index, end), content));
}

// ---- a random session

const randomText = (random, count) => Array.from({ length: count }, () => pick(random, PLACES)).join('');

/** A text of at least `points` code points, in lines. */
function longText(random, points, end) {
  const lines = [];
  for (let count = 0; count < points; count += 60) lines.push(`line ${lines.length} ${'x'.repeat(between(random, 10, 90))} 😀`);
  return lines.join(end);
}

const pointsOf = (document) => document.text.points.reduce((sum, count) => sum + count, 0);

/** A position that exists, in the negotiated unit. */
function randomPosition(random, { text }) {
  const line = between(random, 0, text.lines.length - 1);
  const content = text.lines[line].replace(/[\r\n]+$/, '');
  let index = between(random, 0, content.length);
  if (index > 0 && (content.codePointAt(index - 1) ?? 0) > 0xffff) index -= 1;
  return text.position(line, index);
}

function randomRange(random, document) {
  const [one, other] = [randomPosition(random, document), randomPosition(random, document)];
  const isOrdered = one[0] < other[0] || (one[0] === other[0] && one[1] <= other[1]);
  return isOrdered ? [...one, ...other] : [...other, ...one];
}

function editInOrder(producer, random, document) {
  const patches = [];
  let points = pointsOf(document);
  for (let count = pick(random, [1, 1, 1, 1, 2, 3, 7]); count > 0; count -= 1) {
    const offset = between(random, 0, points);
    const isCut = points > POINTS_MAX && patches.length === 0;
    const deleted = Math.min(points - offset, isCut ? points >> 1 : pick(random, [0, 0, 0, 1, 1, 3, 20]));
    const inserted = randomText(random, pick(random, [0, 1, 1, 1, 2, 5, 12]));
    patches.push([offset, deleted, inserted]);
    points = points - deleted + countPoints(inserted);
    // A line end that joins with its neighbour does not change how many code points there are.
  }
  producer.editPoints(document.alias, patches);
}

const countPoints = (text) => [...text].length;

/** Several cursors type at once: all positions are of the text before. */
function editTogether(producer, random, document) {
  const points = pointsOf(document);
  const changes = [];
  for (let offset = between(random, 0, 5); offset + 4 <= points && changes.length < 12; offset += between(random, 6, 400)) {
    changes.push(document.text.changeOfPoints(offset, between(random, 0, 3), randomText(random, between(random, 0, 3))));
    if (random() < 0.3) changes.push(document.text.changeOfPoints(offset, 0, randomText(random, 1)));
  }
  if (random() < 0.5) changes.reverse();
  if (changes.length === 0) return;
  try {
    producer.edit(document.alias, changes, 'sim', between(random, 1, 3));
  } catch (error) {
    // Two changes that were widened around the same \r\n overlap; nothing has been changed or sent then.
    if (!(error instanceof Refusal)) throw error;
  }
}

function paste(producer, random, document) {
  const size = pick(random, [20_000, 70_000, 120_000]);
  const at = between(random, 0, pointsOf(document));
  producer.editPoints(document.alias, [[at, 0, longText(random, size, '\n').slice(0, size).toWellFormed()]]);
}

function showSelection(producer, random, document) {
  const ranges = Array.from({ length: between(random, 1, 3) }, () => [
    ...randomPosition(random, document),
    ...randomPosition(random, document),
  ]);
  producer.show(document.alias, 'selection', { view: pick(random, ['', 'left']), ranges });
}

function showDiagnostics(producer, random, document) {
  const items = Array.from({ length: between(random, 0, 3) }, () => ({
    range: randomRange(random, document),
    severity: between(random, 1, 4),
    message: 'something is odd here',
    source: 'check',
  }));
  producer.show(document.alias, 'diagnostics', { items });
}

function design(producer, random) {
  const alias = producer.openDesign({
    uri: 'design:///board',
    tool: { name: 'sketcher', version: '1' },
    file_name: 'board',
    pages: [{ id: 'p1', name: 'Page', order: 0 }],
    current_page: 'p1',
  });
  const box = { x: -1.5, y: 2.25, width: 10, height: 0.5 };
  producer.selectDesign(alias, { page: 'p1', nodes: [{ id: 'n1', kind: 'FRAME', name: 'Näme', box }], total: 1 });
  if (random() < 0.7) producer.closeDesign(alias);
}

async function openOrClose(producer, random, document) {
  if (producer.documents.size >= DOCUMENTS_MAX || (producer.documents.size > 3 && random() < 0.5)) {
    producer.close(document.alias);
    if (random() < 0.5) return;
    // The same alias may be used again, but not before the server has applied the close: a cursor in the new document
    // that overtakes the close would be taken for one in the old document, and forgotten with it [SEQ-4, PRS-5].
    await producer.settled();
    producer.openAs(document.alias, `file:///random/again-${between(random, 0, 999)}.txt`, randomText(random, 40));
    return;
  }
  producer.open(`file:///random/more-${producer.lastAlias}.txt`, randomText(random, between(random, 0, 300)));
}

/** What may happen, and how often in relation to the rest. */
const ACTIONS = [
  [600, editInOrder],
  [80, editTogether],
  [120, (producer, random, document) => producer.show(document.alias, 'cursor', { position: randomPosition(random, document) })],
  [50, showSelection],
  [30, (producer, random, { alias, text }) => {
    const first = between(random, 0, text.lines.length - 1);
    producer.show(alias, 'viewport', { first_line: first, last_line: Math.min(first + 40, text.lines.length - 1) });
  }],
  [20, showDiagnostics],
  [20, (producer, random, { alias }) => producer.show(alias, 'state', { dirty: random() < 0.5 })],
  [20, (producer, random, { alias }) => producer.setFocus(random() < 0.8 ? alias : null)],
  [20, (producer, random, { alias }) => producer.save(alias)],
  [10, (producer, random, document) => producer.mention(document.alias, { range: randomRange(random, document), note: 'look' })],
  [10, (producer, random, document) => producer.sendSnapshot(document)],
  [4, paste],
  [12, openOrClose],
  [6, design],
];
const WEIGHT = ACTIONS.reduce((sum, [weight]) => sum + weight, 0);

function pickAction(random) {
  let left = random() * WEIGHT;
  for (const [weight, action] of ACTIONS) {
    left -= weight;
    if (left < 0) return action;
  }
  return editInOrder;
}

/**
 * @param {Producer} producer
 * @param {() => number} random
 * @param {{actions: number, paceMs: number}} options
 */
export async function playRandom(producer, random, { actions, paceMs }) {
  producer.open('file:///random/notes.txt', 'one\ntwo\nthree\n', 'plaintext');
  producer.open('file:///random/windows.txt', 'eins 😀\r\nzwei\r\n\r\ndrei 𝒳', 'plaintext');
  producer.open('file:///random/empty.txt', '');
  producer.open('file:///random/long.txt', longText(random, 150_000, '\r\n'));
  for (let count = 0; count < actions; count += 1) {
    await producer.ready();
    const document = pick(random, [...producer.documents.values()]);
    await pickAction(random)(producer, random, document);
    if (paceMs > 0) await sleep(producer.clock, random() * 2 * paceMs);
  }
  for (const alias of producer.documents.keys()) producer.save(alias);
}
