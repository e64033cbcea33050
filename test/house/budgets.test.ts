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
  '*': [20, 374],
  areal: [6, 790],
  cli: [40, 2750],
  core: [36, 2530],
  dataset: [14, 1540],
  flows: [12, 1780],
  gateway: [61, 4400],
  grader: [9, 660],
  graders: [46, 5280],
  http: [7, 660],
  integrations: [6, 1180],
  isolation: [5, 610],
  nn: [32, 3960],
  osmosis: [12, 1905],
  processes: [10, 1830],
  rollout: [18, 1760],
  run: [58, 4950],
  statistics: [4, 132],
  store: [13, 1210],
  testing: [9, 1805],
  tinker: [55, 6050],
  tokens: [27, 2530],
  trainer: [11, 605],
  tuner: [5, 730],
};
/** Files that are loaded with one, itself included. */
const CLOSURES: Readonly<Record<string, number>> = { 'src/index.ts': 285, 'src/run/train.ts': 270 };
const WORDS = 30;
const REPEATED_NAMES = 48;
const TEST_LINES = 54_500;

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
