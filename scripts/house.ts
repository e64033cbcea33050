/**
 * Prints how large the house is, beside what it may be at most: `npm run house`. With `--walks` also what each walk entered.
 *
 * The measures are those of test/house/measures.ts, and the caps those of test/house/caps.ts, which `npm run check` holds the tree to. How long
 * the tests take is printed by the tests themselves.
 */
import { execFileSync } from 'node:child_process';
import { CAPS, WORDS } from '../test/house/caps.ts';
import { cycleFaults, directionFaults } from '../test/house/imports.ts';
import {
  cappedSources,
  closureOf,
  documentWords,
  functionP95,
  glossaryWords,
  medianLines,
  ownFiles,
  packedLines,
  repeatedNames,
  shippedSources,
  sizeByFolder,
  sizeOf,
  testLines,
  wordsOf,
} from '../test/house/measures.ts';
import { settingsPlaces } from '../test/house/settings-places.ts';
import { lineCount, repository } from '../test/house/sources.ts';
import type { Walks } from '../test/house/walks.ts';

const sources = shippedSources();
const whole = sizeOf(sources);
const folders = ownFiles(sources);
const [largest, most] = [...folders].toSorted(([, a], [, b]) => b - a)[0]!;
const packed = sources.map(packedLines);
const words = documentWords();
const places = [...settingsPlaces(sources).values()].map(({ length }) => length);
const number = (value: number): string => value.toLocaleString('en');

const rows: readonly (readonly [string, string, string])[] = [
  ['source tokens', number(sizeOf(cappedSources()).tokens), number(CAPS.tokens)],
  ['source files, lines', `${whole.files}, ${number(whole.lines)}`, ''],
  ['median file, longest file', `${medianLines(sources)}, ${Math.max(...sources.map(({ text }) => lineCount(text)))}`, '–, 600'],
  ['function length, p95', `${functionP95(sources)}`, '25'],
  [
    'top-level folders',
    `${new Set([...folders.keys()].map((folder) => folder.split('/')[1]).filter(Boolean)).size}`,
    `${CAPS.topFolders}`,
  ],
  [`own files of the largest folder (${largest.slice(4)})`, `${most}`, `${CAPS.ownFiles}`],
  [
    'packed spreads, tuples',
    `${packed.flatMap(({ spreads }) => spreads).length}, ${packed.flatMap(({ tuples }) => tuples).length}`,
    `0, ${CAPS.tuples}`,
  ],
  ['cycles, imports against the plan', `${cycleFaults(sources).length}, ${directionFaults(sources).length}`, '0, 0'],
  ["files loaded with 'trainyard'", `${closureOf('src/index.ts', sources).length}`, ''],
  [
    'glossary, file names used twice',
    `${glossaryWords()}, ${repeatedNames(sources).length}`,
    `${CAPS.glossary}, ${CAPS.repeatedNames}`,
  ],
  ['words of docs/ by hand, by code', `${number(words.written)}, ${number(words.generated)}`, number(CAPS.documentWords)],
  ...Object.entries(WORDS).map(([path, atMost]) => [`words of ${path}`, number(wordsOf(path)), number(atMost)] as const),
  [
    'places that declare one setting: mean, most',
    `${(places.reduce((sum, one) => sum + one) / places.length).toFixed(2)}, ${Math.max(...places)}`,
    '1',
  ],
  ['lines of tests', number(testLines()), number(CAPS.testLines)],
];

const widths = [0, 1, 2].map((column) => Math.max(...rows.map((row) => row[column]!.length)));
for (const row of [['', 'now', 'at most'], ...rows])
  console.log(row.map((cell, column) => cell.padEnd(widths[column]!)).join('  '));

console.log('\nfolder            files  lines  tokens');
for (const [folder, { files, lines, tokens }] of sizeByFolder(sources))
  console.log(`${folder.padEnd(16)} ${`${files}`.padStart(6)} ${`${lines}`.padStart(6)} ${`${tokens}`.padStart(7)}`);

const runWalks = (...flags: readonly string[]): string =>
  execFileSync(process.execPath, ['--conditions=trainyard-source', 'test/house/walks.ts', ...flags], {
    cwd: repository,
    encoding: 'utf8',
  });
if (process.argv.includes('--walks')) console.log(`\n${runWalks('--walks')}`);
else {
  console.log('\nwalk                calls  functions  files  folders  changes');
  for (const [walk, { calls, functions, files, folders: entered, changes }] of Object.entries(JSON.parse(runWalks()) as Walks))
    console.log(walk.padEnd(17), ...[calls, functions, files, entered, changes].map((count) => `${count}`.padStart(8)));
}
