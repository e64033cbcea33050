/**
 * Prints how large the house is, beside what it may be at most: `npm run house`. With `--walks` instead the folders that each walk goes through.
 *
 * The measures are those of test/house/measures.ts, which budgets.test.ts holds the tree to folder by folder. Times are CPU seconds, the
 * least of five starts. How long the tests take is printed by the tests themselves.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { cycleFaults, directionFaults } from '../test/house/imports.ts';
import {
  closureOf,
  functionP95,
  glossaryWords,
  inFirstRing,
  largestRoom,
  medianLines,
  repeatedNames,
  type Size,
  shippedSources,
  sizeByFolder,
  sizeOf,
  testLines,
} from '../test/house/measures.ts';
import { lineCount, repository } from '../test/house/sources.ts';
import type { MeasuredWalk, Walks } from '../test/house/walks.ts';

const sources = shippedSources();
const thousands = (lines: number): string => `${(lines / 1000).toFixed(1)}k`;
const said = ({ files, lines }: Size): string => `${files} / ${thousands(lines)}`;

const runWalks = (...args: readonly string[]): string =>
  execFileSync(process.execPath, ['--conditions=trainyard-source', 'test/house/walks.ts', ...args], {
    cwd: repository,
    encoding: 'utf8',
  });
if (process.argv.includes('--walks')) {
  console.log(runWalks('--walks'));
  process.exit();
}
const walks = JSON.parse(runWalks()) as Walks;
const walked = ({ calls, functions, files, folders, changes }: MeasuredWalk): string =>
  [calls, functions, files, folders, changes].join(' / ');

/** CPU seconds of `trainyard --version`, user and system. */
function versionSeconds(file: string, flags: readonly string[]): string {
  if (!existsSync(join(repository, file))) return 'not built';
  const runs = Array.from({ length: 5 }, () => {
    const timed = spawnSync(
      'bash',
      ['-c', `TIMEFORMAT='%U %S'; time "$0" "$@" >/dev/null`, process.execPath, ...flags, file, '--version'],
      {
        cwd: repository,
        encoding: 'utf8',
      },
    );
    return timed.stderr
      .trim()
      .split(/\s+/)
      .slice(-2)
      .reduce((sum, seconds) => sum + Number(seconds), 0);
  });
  return Math.min(...runs).toFixed(2);
}

const whole = sizeOf(sources);
const [room, roomSize] = largestRoom(sources);
const longest = Math.max(...sources.map(({ text }) => lineCount(text)));

const rows: readonly (readonly [string, string, string])[] = [
  ['source files / lines', said(whole), '260 / 42k'],
  ['code lines', thousands(whole.code), '34k'],
  ['median file, longest file', `${medianLines(sources)}, ${longest}`, '180, 450'],
  ['first ring', said(sizeOf(sources.filter(inFirstRing))), '145 / 24k'],
  [`largest room (${room})`, said(roomSize), '20 / 5k'],
  ['import closure of run/train.ts', said(sizeOf(closureOf('src/run/train.ts', sources))), '150 / 20k'],
  ["import closure of 'trainyard'", said(sizeOf(closureOf('src/index.ts', sources))), '25 files'],
  ['calls / functions / files / folders / changes: rollout', walked(walks.rollout), '38 files, 100 changes'],
  ['  its chat completion', walked(walks.completion), '22 files, 25 changes'],
  ['  its grading', walked(walks.grading), ''],
  ['  its append to the store', walked(walks.append), '90 calls'],
  ['  one JSONL row', walked(walks.row), '5 files'],
  ['  one Tinker forward_backward', walked(walks.tinker), '16 files'],
  ['trainyard --version, CPU: source', `${versionSeconds('src/cli/main.ts', ['--conditions=trainyard-source'])} s`, '0.20 s'],
  ['trainyard --version, CPU: dist', `${versionSeconds('dist/cli/main.js', [])} s`, '0.12 s'],
  ['glossary', `${glossaryWords()}`, '30'],
  ['file names used twice', `${repeatedNames(sources).length}`, '10'],
  ['test lines', thousands(testLines()), '38k'],
  ['function length, p95', `${functionP95(sources)}`, '30'],
  ['cycles, imports against the plan', `${cycleFaults(sources).length}, ${directionFaults(sources).length}`, '0, 0'],
];

const widths = [0, 1, 2].map((column) => Math.max(...rows.map((row) => row[column]!.length)));
for (const row of [['', 'now', 'at most'], ...rows])
  console.log(row.map((cell, column) => cell.padEnd(widths[column]!)).join('  '));
console.log('\nfolder            files  lines   code');
for (const [folder, { files, lines, code }] of sizeByFolder(sources))
  console.log(`${folder.padEnd(16)} ${`${files}`.padStart(6)} ${`${lines}`.padStart(6)} ${`${code}`.padStart(6)}`);
