/**
 * What the house may be at most. One cap on the sum of source tokens, raised only by an issue that names the number; the others hold what is easily
 * lost again. `npm run house` prints them beside today's numbers.
 */
export const CAPS = {
  /** Source tokens of all that ships; 617,370 when the gauge was first read. */
  tokens: 586_500,
  testLines: 62_100,
  documentWords: 48_000,
  glossary: 30,
  repeatedNames: 15,
  topFolders: 24,
  ownFiles: 22,
  /** Values packed into one declaration; swaps are. */
  tuples: 10,
} as const;

export const WORDS: Readonly<Record<string, number>> = { 'README.md': 650, 'CHANGELOG.md': 600, 'ARCHITECTURE.md': 1_600 };

/** Files that are loaded with one, itself included. */
export const CLOSURES: Readonly<Record<string, number>> = { 'src/index.ts': 15, 'src/training/train.ts': 134 };
