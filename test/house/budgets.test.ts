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
  '*': [16, 381],
  areal: [6, 840],
  cli: [28, 3725],
  core: [18, 2955],
  dataset: [6, 843],
  flows: [13, 2180],
  gateway: [21, 3775],
  grader: [4, 460],
  graders: [19, 3934],
  http: [4, 553],
  integrations: [7, 1275],
  isolation: [3, 534],
  nn: [34, 5600],
  osmosis: [11, 1895],
  processes: [11, 1760],
  rollout: [7, 1205],
  run: [42, 7200],
  store: [11, 1780],
  testing: [8, 1736],
  tinker: [21, 4775],
  tokens: [15, 2738],
  trainer: [7, 536],
  tuner: [5, 750],
  view: [18, 2960],
  init: [2, 220],
  workers: [5, 960],
};
/** Files that are loaded with one, itself included. */
const CLOSURES: Readonly<Record<string, number>> = { 'src/index.ts': 15, 'src/run/train.ts': 127 };
const WORDS = 30;
const REPEATED_NAMES = 14;
const TEST_LINES = 60_100;

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
