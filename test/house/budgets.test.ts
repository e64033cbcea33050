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
  '*': [16, 386],
  areal: [6, 807],
  cli: [17, 2489],
  core: [15, 2299],
  dataset: [6, 998],
  flows: [13, 2030],
  gateway: [20, 3509],
  grader: [4, 510],
  graders: [19, 4443],
  http: [4, 586],
  integrations: [6, 1205],
  isolation: [3, 525],
  nn: [25, 3591],
  osmosis: [11, 1927],
  processes: [10, 1585],
  rollout: [7, 1060],
  run: [19, 3588],
  store: [7, 1096],
  testing: [8, 1830],
  tinker: [18, 4192],
  tokens: [13, 2273],
  trainer: [4, 403],
  tuner: [4, 748],
};
/** Files that are loaded with one, itself included. */
const CLOSURES: Readonly<Record<string, number>> = { 'src/index.ts': 15, 'src/run/train.ts': 115 };
const WORDS = 30;
const REPEATED_NAMES = 10;
const TEST_LINES = 51_000;

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
