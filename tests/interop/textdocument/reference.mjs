// A document of the package, driven by JSON lines: one line in, one line out, until the input ends.
//
// In:  {"text", "batches": [{"changes": [[startLine, startCharacter, endLine, endCharacter, text], ...],
//                            "simultaneous", "offsets": [...]}, ...]}
// Out: [{"text", "lines": [...], "positions": [[line, character], ...], "offsets": [...]}, ...], after each batch.

import { createInterface } from 'node:readline';
import { TextDocument } from 'vscode-languageserver-textdocument';

const rangeOf = ([startLine, startCharacter, endLine, endCharacter]) => ({
  start: { line: startLine, character: startCharacter },
  end: { line: endLine, character: endCharacter },
});

// Simultaneous edits are those of a formatter, for which the package has another function, that makes a new text.
const apply = (document, { changes, simultaneous }) =>
  simultaneous
    ? create(TextDocument.applyEdits(document, changes.map((c) => ({ range: rangeOf(c), newText: c[4] }))))
    : TextDocument.update(document, changes.map((c) => ({ range: rangeOf(c), text: c[4] })), document.version + 1);

const create = (text) => TextDocument.create('file:///a', 'plaintext', 1, text);

const lineOf = (document, line) =>
  document.getText({ start: { line, character: 0 }, end: { line: line + 1, character: 0 } });

const shown = (document, offsets) => {
  const positions = offsets.map((offset) => document.positionAt(offset));
  return {
    text: document.getText(),
    lines: Array.from({ length: document.lineCount }, (_, line) => lineOf(document, line)),
    positions: positions.map(({ line, character }) => [line, character]),
    offsets: positions.map((position) => document.offsetAt(position)),
  };
};

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  const { text, batches } = JSON.parse(line);
  let document = create(text);
  const results = batches.map((batch) => {
    document = apply(document, batch);
    return shown(document, batch.offsets);
  });
  process.stdout.write(`${JSON.stringify(results)}\n`);
}
