/**
 * The house does not grow by itself: every folder has a budget of files and code lines, and so has what an import draws in. Whoever needs more
 * raises a number here and says in a decision (docs/decisions/) what for; whoever needs less lowers it. `npm run house` prints where we stand.
 */
import { describe, expect, it } from 'vitest';
import {
  closureOf,
  glossaryWords,
  repeatedNames,
  type Size,
  shippedSources,
  sizeByFolder,
  sizeOf,
  testLines,
} from './measures.ts';

/** Files and code lines of each folder of src/; `*` is the public surface. */
const FOLDERS: Readonly<Record<string, readonly [files: number, code: number]>> = {
  '*': [16, 379],
  areal: [6, 794],
  cli: [29, 3743],
  core: [18, 2992],
  dataset: [6, 869],
  flows: [13, 2186],
  gateway: [21, 3837],
  grader: [4, 441],
  graders: [18, 3833],
  http: [4, 587],
  integrations: [7, 1274],
  isolation: [3, 609],
  nn: [32, 5372],
  osmosis: [11, 1855],
  processes: [11, 1816],
  rollout: [7, 1169],
  run: [43, 7485],
  store: [10, 1689],
  testing: [8, 1736],
  tinker: [23, 4892],
  tokens: [16, 2832],
  trainer: [7, 542],
  tuner: [5, 738],
  view: [18, 2958],
  init: [2, 219],
  workers: [6, 1175],
};
/** Files that are loaded with one, itself included. */
const CLOSURES: Readonly<Record<string, number>> = { 'src/index.ts': 15, 'src/run/train.ts': 127 };
const WORDS = 30;
const REPEATED_NAMES = 14;
const TEST_LINES = 63_100;

const sources = shippedSources();
const over = ({ files, code }: Size, [mostFiles, mostCode]: readonly [number, number]): boolean =>
  files > mostFiles || code > mostCode;

describe('the budget', () => {
  it.each([...sizeByFolder(sources)])('of src/%s is kept', (folder, size) => {
    const budget = FOLDERS[folder] ?? [0, 0];
    expect(
      over(size, budget) ? size : 'kept',
      `at most ${budget[0]} files and ${budget[1]} code lines; simplify, or decide to grow`,
    ).toBe('kept');
  });

  it.each(Object.entries(CLOSURES))('of what is loaded with %s is kept', (path, most) => {
    expect(sizeOf(closureOf(path, sources)).files, 'load parts by import() where they are needed').toBeLessThanOrEqual(most);
  });

  it('of words, names and tests is kept', () => {
    expect(glossaryWords(), 'words in the glossary of ARCHITECTURE.md').toBeLessThanOrEqual(WORDS);
    expect(repeatedNames(sources).length, `file names used twice: ${repeatedNames(sources).join(', ')}`).toBeLessThanOrEqual(
      REPEATED_NAMES,
    );
    expect(testLines(), 'lines of tests').toBeLessThanOrEqual(TEST_LINES);
  });
});

describe('the budget rule', () => {
  it('refuses one file or one line too many', () => {
    expect(over({ files: 2, lines: 30, code: 20 }, [2, 20])).toBe(false);
    expect(over({ files: 3, lines: 30, code: 20 }, [2, 20])).toBe(true);
    expect(over({ files: 2, lines: 30, code: 21 }, [2, 20])).toBe(true);
  });
});
