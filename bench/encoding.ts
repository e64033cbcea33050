/**
 * Text → ids, ours against the tokenizer library: `node --conditions=source bench/encoding.ts <folder with tokenizer.json>`.
 *
 * Every run encodes texts that neither has seen, both in turn; the best run counts. Prints milliseconds per text and their ratio, which
 * is all that can be compared between machines.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { byteLevelEncoder } from '../src/tokens/byte-level.ts';
import { createPlainLibrary, vocabularySize, withoutControl } from '../src/tokens/tokenizer.ts';
import { readTokenizerFiles } from '../src/tokens/tokenizer-files.ts';

const root = join(import.meta.dirname, '..');
const { definition, config } = await readTokenizerFiles(process.argv[2] ?? join(root, 'models/base'));
const textOnly = withoutControl(definition, definition.added_tokens);
const library = createPlainLibrary(textOnly, config, vocabularySize(definition));
const ours = byteLevelEncoder(textOnly, config, library);
if (!ours) throw new Error('this tokenizer is left to the library: there is nothing to compare');
const theirs = (text: string) => library.encode(text, { add_special_tokens: false }).ids;

const prose = ['README.md', 'ARCHITECTURE.md', 'CHANGELOG.md'].map((name) => readFileSync(join(root, name), 'utf8')).join('\n');
const words = prose.split(/(?<=\s)/);
let state = 1;
function random(below: number): number {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return Math.floor((state / 2 ** 32) * below);
}
const text = (count: number) => Array.from({ length: count }, () => words[random(words.length)]!).join('');
const word = (length: number) => Array.from({ length }, () => String.fromCharCode(97 + random(26))).join('');
const row = () => ({ id: random(1e9), code: `SKU-${random(1e6).toString(36)}`, name: text(3).trim(), price: random(1e4) / 100 });
const json = (rows: number) => JSON.stringify(Array.from({ length: rows }, row), null, 1);

const CASES = [
  { name: 'a question of 24 words', draw: () => text(24), texts: 200, runs: 20 },
  { name: '2 kB of prose', draw: () => text(300), texts: 20, runs: 10 },
  { name: '100 kB of JSON', draw: () => json(1100), texts: 1, runs: 5 },
  { name: '5 MB of prose', draw: () => text(884_000), texts: 1, runs: 2 },
  { name: 'one word of 1 MB', draw: () => word(1e6), texts: 1, runs: 2 },
];

function timeOf(encode: (text: string) => unknown, texts: readonly string[]): number {
  const start = performance.now();
  for (const one of texts) encode(one);
  return (performance.now() - start) / texts.length;
}

for (const { name, draw, texts, runs } of CASES) {
  const best = { library: Number.POSITIVE_INFINITY, ours: Number.POSITIVE_INFINITY };
  let characters = 0;
  for (let run = 0; run < runs; run++) {
    const drawn = Array.from({ length: texts }, draw);
    characters = drawn[0]!.length;
    best.library = Math.min(best.library, timeOf(theirs, drawn));
    best.ours = Math.min(best.ours, timeOf(ours, drawn));
  }
  const ratio = (best.library / best.ours).toFixed(1);
  console.log(
    `${name} (${characters} characters): library ${best.library.toFixed(3)} ms, ours ${best.ours.toFixed(3)} ms, ratio ${ratio}`,
  );
}
