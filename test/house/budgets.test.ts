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
  '*': [17, 340],
  areal: [13, 900],
  cli: [35, 2500],
  core: [32, 2300],
  dataset: [12, 1400],
  flows: [32, 2200],
  gateway: [54, 4000],
  grader: [8, 600],
  graders: [41, 4800],
  http: [6, 600],
  integrations: [11, 1000],
  isolation: [12, 900],
  nn: [28, 3600],
  osmosis: [31, 2450],
  processes: [29, 2300],
  rollout: [16, 1600],
  run: [51, 4500],
  store: [11, 1100],
  testing: [13, 1950],
  tinker: [49, 5500],
  tokens: [24, 2300],
  trainer: [9, 550],
  tuner: [9, 800],
};
/** Files that are loaded with one, itself included. */
const CLOSURES: Readonly<Record<string, number>> = { 'src/index.ts': 285, 'src/run/train.ts': 270 };
const WORDS = 94;
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
