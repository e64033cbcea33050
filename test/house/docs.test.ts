/**
 * The documentation says what the code does: error codes, folders, commands, flags and links are compared with the tree, both
 * ways, so neither side can change alone.
 */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import type { Command } from 'commander';
import { describe, expect, it } from 'vitest';
import { llmsText } from '../../scripts/llms.ts';
import { ERROR_CODES, WARNINGS } from '../../src/core/error-codes.ts';
import { FORK_CAUSES } from '../../src/core/types.ts';
import { fencedBlocks, fencedLines, linkFaults, sectionsOf, tableRows } from './markdown.ts';
import { lineCount, listFiles, readSources, readText, repository } from './sources.ts';

interface PackageJson {
  readonly version: string;
  readonly scripts?: Readonly<Record<string, string>>;
  readonly files: readonly string[];
}

const packageJson = JSON.parse(readText('package.json')) as PackageJson;
/** Of docs/: their pages are topics of `trainyard help`. */
const FOLDERS = ['guide', 'coming-from', 'reference'];
const sorted = (values: Iterable<string>): readonly string[] => [...values].sort();

describe('docs/guide/any-agent.md', () => {
  it('lists exactly the causes of forks, and says for each what it means and what to do', () => {
    const section = sectionsOf(readText('docs/guide/any-agent.md')).find(({ title }) => title === 'Where a conversation forks');
    const items = section?.lines.join(' ').split(/ - (?=`)/) ?? [];
    const causes = items.slice(1).map((item) => /^`(\w+)`: \w[^.]*\. +\w[^.]*\./.exec(item)?.[1] ?? item);
    expect(causes).toEqual(FORK_CAUSES);
  });
});

describe('docs/guide/troubleshooting.md', () => {
  it('quotes only messages that the program has', () => {
    const sources = listFiles('src', '.ts').filter((path) => !path.endsWith('.test.ts'));
    const code = sources.map(readText).join('\n');
    const quoted = fencedBlocks(readText('docs/guide/troubleshooting.md'), 'text').flatMap((block) => block.split('\n'));
    const fixed = quoted.flatMap((line) => line.replace(/^(error|warning) (\w+): /, '$2…').split(/[…·]/));
    const words = fixed.map((text) => text.replace(/^[\s·)(,×;:]+|[\s·)(,×;:]+$/g, '')).filter((text) => text.length > 2);
    expect(words.length).toBeGreaterThan(20);
    expect(words.filter((text) => !code.includes(text))).toEqual([]);
  });
});

describe('docs/reference/cli.md', () => {
  const verbsOf = (program: Command): readonly string[] => program.commands.map((verb) => verb.name());

  it('says what each verb of the program does, and names no other', async () => {
    const { buildProgram } = await import('../../src/cli/program.ts');
    const rows = tableRows(sectionsOf(readText('docs/reference/cli.md'))[0]?.lines.join('\n') ?? '');
    const documented = rows.flatMap(([verbs = '']) => [...verbs.matchAll(/`([a-z]+)/g)].map(([, verb = '']) => verb));
    expect(sorted(documented)).toEqual(sorted(verbsOf(buildProgram())));
  });
});

describe('error codes', () => {
  it('say what they mean and what to do, in sentences', () => {
    for (const [code, { meaning, remedy }] of Object.entries(ERROR_CODES))
      expect([meaning, remedy], code).toEqual(Array(2).fill(expect.stringMatching(/^\W*[A-Z`].*\.$/)));
    expect(Object.entries(WARNINGS).filter(([, meaning]) => !/^\W*[A-Z`].*\.$/.test(meaning))).toEqual([]);
  });
});

describe('what the program says', () => {
  const topics = FOLDERS.flatMap((folder) =>
    readdirSync(join(repository, 'docs', folder)).map((file) => file.replace(/\.\w+$/, '')),
  );

  it('points to help that users of the package have, never to a file of docs/', () => {
    const faults = readSources('src').flatMap(({ path, text, comments }) => {
      const code = comments.reduce(
        (left, { start, end }) => left.slice(0, start) + ' '.repeat(end - start) + left.slice(end),
        text,
      );
      const named = [...code.matchAll(/trainyard help ([\w/-]+)/g)].map(([, topic]) => topic!.replace(/^\w+\//, ''));
      const isKnown = (topic: string): boolean =>
        topics.includes(topic) || Object.hasOwn(ERROR_CODES, topic) || topic === 'lists';
      const unknown = named.filter((topic) => !isKnown(topic));
      return [...(code.match(/docs\/(?:guide|reference|decisions)/g) ?? []), ...unknown].map((found) => `${path}: ${found}`);
    });
    expect(faults).toEqual([]);
  });

  it('ends the help of every verb with examples and its page', async () => {
    const { buildProgram } = await import('../../src/cli/program.ts');
    for (const verb of buildProgram().commands) {
      let text = '';
      const writeOut = (part: string): void => {
        text += part;
      };
      verb.configureOutput({ writeOut }).outputHelp();
      const [, example, page = ''] =
        /\nExamples:\n.*?trainyard (?:-- )?(\S+)[\s\S]*\nMore: .*trainyard (?:-- )?help (\S+)/.exec(text) ?? [];
      expect([example, topics.includes(page.replace(/^\w+\//, ''))], verb.name()).toEqual([verb.name(), true]);
    }
  });
});

describe('ARCHITECTURE.md', () => {
  it('has one line for each folder of src/ and no other, under a heading that says "folder"', () => {
    const folders = readdirSync(join(repository, 'src'), { withFileTypes: true }).filter((entry) => entry.isDirectory());
    const existing = folders.map(({ name }) => name).filter((name) => listFiles(`src/${name}`, '').length > 0);
    const lines = sectionsOf(readText('ARCHITECTURE.md'))
      .filter(({ title }) => /folder/i.test(title))
      .flatMap((section) => section.lines);
    const described = lines
      .map((line) => /^[\s│├└─|*-]*`?(?:src\/)?([a-z-]+)\/`?[\s|:—–-]+\S/.exec(line)?.[1])
      .filter((name) => name !== undefined);
    expect(sorted([...new Set(described)])).toEqual(sorted(existing));
  });
});

describe('README.md', () => {
  const NPM_OWN = new Set(['ci', 'install', 'i', 'pack', 'link', 'create', 'exec', 'init']);

  /** The scripts that command lines run through npm: `npm run x`, `npm test`, with options before the name. */
  function scriptsUsed(lines: readonly string[]): readonly string[] {
    return lines.flatMap((line) =>
      [...line.replace(/#.*$/, '').matchAll(/\bnpm\s+([^;&|]+)/g)].flatMap((command) => {
        const [verb, name] = (command[1] ?? '').split(/\s+/).filter((word) => !word.startsWith('-'));
        const script = verb === 'run' || verb === 'run-script' ? name : verb;
        return script === undefined || NPM_OWN.has(script) ? [] : [script];
      }),
    );
  }

  it('shows only npm scripts that exist', () => {
    const used = scriptsUsed(fencedLines(readText('README.md'), 'sh'));
    expect(used, 'npm scripts in fenced sh blocks').not.toEqual([]);
    expect(
      used.filter((script) => packageJson.scripts?.[script] === undefined),
      'not in package.json; correct README.md',
    ).toEqual([]);
  });
});

describe('Markdown links', () => {
  const pages = listFiles('', '.md');

  it('lead somewhere, within the repository', () => {
    expect(pages.flatMap((page) => linkFaults(page, repository, readText))).toEqual([]);
  });

  it.each([
    ['[a](gone.md)', 'names docs/gone.md'],
    ['![a](../../outside.png)', 'names ../outside.png'],
    ['[a]: gone.md', 'names docs/gone.md'],
    ['[a](#nowhere)', 'names a heading'],
    ['[a](../package.json/)', 'names package.json/'],
  ])('are refused when they are like %s', (text, reason) => {
    expect(linkFaults('docs/page.md', repository, () => text)).toEqual([expect.stringContaining(reason)]);
  });

  it('are accepted to files, folders, headings and other hosts, and not looked for in code', () => {
    const text =
      '# A page: `one`\n[a](../package.json) [b](../src) [c](#a-page-one) [d](https://x.example/y)\n`[e](gone.md)`\n```md\n[f](gone.md)\n```\n';
    expect(linkFaults('docs/reference/errors.md', repository, () => text.replaceAll('../', '../../'))).toEqual([]);
  });
});

describe('docs/README.md', () => {
  const links = [...readText('docs/README.md').matchAll(/\]\(([^)#]+\.md)\)/g)].map(([, to = '']) => join('docs', to));

  it('leads to every page', () => {
    const pages = FOLDERS.flatMap((folder) => listFiles(`docs/${folder}`, '.md'));
    expect([...pages, 'docs/comparison.md'].filter((page) => !links.includes(page))).toEqual([]);
  });
});

describe('llms.txt', () => {
  it('is written from docs/README.md', () => {
    expect(readText('llms.txt'), 'npm run llms writes it').toBe(llmsText(readText('docs/README.md')));
  });

  it('has the form of llmstxt.org: a title, a summary, and sections of links with a line about each', () => {
    const lines = readText('llms.txt').split('\n');
    expect([lines[0], lines[2]]).toEqual([expect.stringMatching(/^# \w/), expect.stringMatching(/^> \w/)]);
    const listed = lines.slice(lines.findIndex((line) => line.startsWith('## '))).filter((line) => line !== '');
    expect(listed.filter((line) => !/^(## \w.*|- \[[^\]]+\]\([^)]+\): \S.*)$/.test(line))).toEqual([]);
  });

  it('is packed', () => {
    expect(packageJson.files).toContain('llms.txt');
  });
});

describe('the pages around the code', () => {
  it('are packed, if README.md or a page of docs/ links to them', () => {
    const linked = ['README.md', ...listFiles('docs', '.md')].flatMap((page) =>
      [...readText(page).matchAll(/\]\((?:\.\.\/)*([A-Z]+\.md)[)#]/g)].map(([, name]) => name as string),
    );
    expect([...new Set(linked)].filter((name) => name !== 'README.md' && !packageJson.files.includes(name))).toEqual([]);
  });

  it('CHANGELOG.md has a section for what is unreleased or for the current version', () => {
    const titles = sectionsOf(readText('CHANGELOG.md')).map(({ title }) => title);
    const current = titles.filter(
      (title) => /\bunreleased\b/i.test(title) || title.split(/[\s[\]()v]+/).includes(packageJson.version),
    );
    expect(current, `no heading names Unreleased or ${packageJson.version} among: ${titles.join(', ')}`).not.toEqual([]);
  });

  it('AGENTS.md has at most 100 lines', () => {
    expect(lineCount(readText('AGENTS.md')), 'lines of AGENTS.md; move detail to docs/').toBeLessThanOrEqual(100);
  });

  it('src/training/train.ts is one page: under 220 lines', () => {
    expect(
      lineCount(readText('src/training/train.ts')),
      'lines of src/training/train.ts; name its steps in other files of run/',
    ).toBeLessThan(220);
  });
});
