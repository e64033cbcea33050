/** Every code sample of the four documents has a running counterpart: the tables say which, and this checks that they are true. */
import { existsSync, readdirSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ROOT } from '../cli/command.ts';
import { tableRows } from './markdown.ts';
import { readText } from './sources.ts';

/** Page → the folder of its examples, and how many samples its document has. */
const ORIGINS = [
  { page: 'docs/coming-from/areal.md', folder: 'areal', samples: 3 },
  { page: 'docs/coming-from/osmosis.md', folder: 'osmosis', samples: 6 },
  { page: 'docs/coming-from/claw-r1.md', folder: 'agent-flow', samples: 6 },
  { page: 'docs/coming-from/agentscope.md', folder: 'tuner', samples: 11 },
] as const;

const TESTS = readdirSync(join(ROOT, 'test/e2e')).map((file) => readText(`test/e2e/${file}`));

const HEAD = '| sample of the document | here |';

interface Row {
  readonly sample: string;
  /** From the root of the project. */
  readonly files: readonly string[];
}

function rowsOf(page: string): readonly Row[] {
  const [, ...rest] = readText(page).split(HEAD);
  const rows = /^.*\n\|[-| ]+\|\n((?:\|.*\n)*)/.exec(rest.join(HEAD))?.[1] ?? '';
  return tableRows(rows).map((cells) => {
    const links = [...cells.join('|').matchAll(/\]\(([^)#]+)(?:#[^)]*)?\)/g)].map(([, to = '']) =>
      normalize(join(dirname(page), to)),
    );
    return { sample: cells[0] ?? '', files: links.filter((file) => file.startsWith('examples/')) };
  });
}

describe.each(ORIGINS)('the table in $page', ({ page, folder, samples }) => {
  const rows = rowsOf(page);

  it('has a row for every sample of the document, and each names an example that exists', () => {
    expect(rows.length).toBeGreaterThanOrEqual(samples);
    for (const { sample, files } of rows) {
      expect({ sample, files: files.length }).not.toEqual({ sample, files: 0 });
      for (const file of files) expect({ file, exists: existsSync(join(ROOT, file)) }).toEqual({ file, exists: true });
    }
  });

  it('names every example of the folder, and each is run by a test or is part of one that is', () => {
    const named = new Set(rows.flatMap(({ files }) => files));
    const files = readdirSync(join(ROOT, 'examples', folder));
    const entries = files.filter((file) => /\.ts$/.test(file));
    const sources = files.filter((file) => /\.(ts|yaml)$/.test(file)).map((file) => readText(`examples/${folder}/${file}`));
    const isPart = (file: string) => sources.some((source) => source.includes(`./${file}`));
    const isRun = (file: string) => TESTS.some((test) => test.includes(file.replace(/\.ts$/, '')));
    expect(entries.filter((file) => !named.has(`examples/${folder}/${file}`))).toEqual([]);
    expect(entries.filter((file) => !isRun(file) && !isPart(file))).toEqual([]);
  });
});
