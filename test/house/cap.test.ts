/**
 * The house does not grow by itself: one cap on the sum of source tokens, raised only by an issue that names the number. Who needs room makes
 * something else needless first. `npm run house` prints where we stand.
 */
import { describe, expect, it } from 'vitest';
import { CAPS, CLOSURES, WORDS } from './caps.ts';
import {
  cappedSources,
  closureOf,
  documentWords,
  glossaryWords,
  ownFiles,
  packedLines,
  repeatedNames,
  shippedSources,
  sizeOf,
  testLines,
  tokensOf,
  wordsOf,
} from './measures.ts';
import { isTest, parseSource, readSources } from './sources.ts';

const sources = shippedSources();

describe('the house', () => {
  it('has no more source tokens than its cap', () => {
    const { tokens } = sizeOf(cappedSources());
    expect(tokens, `${tokens - CAPS.tokens} over the cap; make something else needless first`).toBeLessThanOrEqual(CAPS.tokens);
  });

  it('has no more lines of tests and words of documents', () => {
    expect(testLines(), 'lines of tests').toBeLessThanOrEqual(CAPS.testLines);
    expect(documentWords().written, 'words in docs/').toBeLessThanOrEqual(CAPS.documentWords);
    for (const [path, most] of Object.entries(WORDS)) expect(wordsOf(path), `words of ${path}`).toBeLessThanOrEqual(most);
  });

  it('has few folders, and few files in each', () => {
    const folders = ownFiles(sources);
    const top = new Set([...folders.keys()].flatMap((folder) => /^src\/[^/]+/.exec(folder)?.[0] ?? []));
    expect(top.size, 'folders of src/').toBeLessThanOrEqual(CAPS.topFolders);
    expect([...folders].filter(([, files]) => files > CAPS.ownFiles)).toEqual([]);
  });

  it.each(Object.entries(CLOSURES))('loads little with %s', (path, most) => {
    expect(closureOf(path, sources).length, 'load parts by import() where they are needed').toBeLessThanOrEqual(most);
  });

  it('has few words and says which file is meant', () => {
    expect(glossaryWords(), 'words in the glossary of ARCHITECTURE.md').toBeLessThanOrEqual(CAPS.glossary);
    expect(repeatedNames(sources).length, `file names used twice: ${repeatedNames(sources).join(', ')}`).toBeLessThanOrEqual(
      CAPS.repeatedNames,
    );
  });

  it('packs no lines', () => {
    const all = ['src', 'packages', 'bench', 'examples', 'templates', 'scripts', 'models']
      .flatMap(readSources)
      .filter(({ path }) => !isTest(path));
    const places = all.map((source) => ({ path: source.path, ...packedLines(source) }));
    expect(places.flatMap(({ path, spreads }) => spreads.map((line) => `${path}:${line}`))).toEqual([]);
    const tuples = places.flatMap(({ path, tuples: lines }) => lines.map((line) => `${path}:${line}`));
    expect(tuples.length, `values packed into one declaration: ${tuples.join(', ')}`).toBeLessThanOrEqual(CAPS.tuples);
  });
});

describe('the gauge', () => {
  const tokens = (text: string): number => tokensOf(parseSource('src/core/a.tsx', text));

  it('counts leaves of the tree, and neither comments nor layout', () => {
    expect(tokens('const a = 1;')).toBe(5);
    expect(tokens("/** a comment */\nconst   a =\n  'some // words';// more")).toBe(5);
    expect(tokens(['`a$', '{b}c`'].join(''))).toBe(3);
    expect(tokens('a ??= b?.c ?? /x y/g;')).toBe(8);
    expect(tokens('const e = <a>two words</a>;')).toBe(12);
  });

  it('sees packed lines', () => {
    const packed = packedLines(
      parseSource(
        'src/core/a.ts',
        'const a = { ...{ b, c } };\nconst [d, e] = [1, 2];\n[f, g] = [g, f];\nconst [h] = [1];\nconst i = { ...j };\nconst k = [...[l, m]];',
      ),
    );
    expect(packed).toEqual({ spreads: [1, 6], tuples: [2, 3] });
  });
});
