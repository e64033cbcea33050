/**
 * The documentation says what the code does: error codes, folders, commands, flags and links are compared with the tree, both
 * ways, so neither side can change alone.
 */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import type { Command } from 'commander';
import { describe, expect, it } from 'vitest';
import { llmsText } from '../../scripts/llms.ts';
import { ERROR_CODES } from '../../src/core/errors.ts';
import { type Schema, schemaFault } from '../../src/core/json-schema.ts';
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

describe('docs/reference/errors.md', () => {
  const rows = (): readonly (readonly string[])[] =>
    tableRows(readText('docs/reference/errors.md')).filter(([code]) => /^`[A-Z_]+`$/.test(code ?? ''));

  it('lists exactly the error codes, with their boundary and exit code', () => {
    const documented = rows().map(([code, where, exit]) => `${code?.slice(1, -1)} | ${where} | ${exit}`);
    const declared = Object.entries(ERROR_CODES).map(([code, { boundary, exit }]) => `${code} | ${boundary} | ${exit}`);
    expect(sorted(documented)).toEqual(sorted(declared));
  });

  it('says for each what it means and what to do', () => {
    for (const [code, , , meaning, remedy, ...rest] of rows()) {
      expect(meaning, `${code}: what it means`).toMatch(/\w.*\.$/);
      expect(remedy, `${code}: what to do`).toMatch(/\w.*\.$/);
      expect(rest, `${code}: a row has five cells`).toEqual([]);
    }
  });
});

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
  /** `trainyard train` → its own flags; flags that a command hides are not documented. */
  function flagsOf(command: Command, parents = ''): ReadonlyMap<string, readonly string[]> {
    const name = `${parents}${command.name()}`;
    const own = command.options.filter((option) => !option.hidden).map((option) => option.long ?? option.short ?? option.flags);
    return new Map([[name, sorted(own)], ...command.commands.flatMap((child) => [...flagsOf(child, `${name} `)])]);
  }

  /** A section titled `trainyard <verb> …` documents that command: its flags open a list item or table row, in backticks. */
  function documentedFlags(text: string, commands: ReadonlySet<string>): ReadonlyMap<string, readonly string[]> {
    const documented = new Map<string, readonly string[]>();
    for (const { title, lines } of sectionsOf(text)) {
      const usage = title.replaceAll('`', '').replace(/\s*[[<].*$/, '');
      if (!commands.has(usage) && !/^trainyard(?: |$)/.test(usage)) continue;
      const listed = lines.map((line) => /^\s*[|*-]\s*`([^`]*)`/.exec(line)?.[1]).filter((code) => code !== undefined);
      documented.set(usage, sorted(listed.flatMap((code) => code.match(/(?<![\w-])--?[a-z][\w-]*/g)?.slice(-1) ?? [])));
    }
    return documented;
  }

  it('lists exactly the commands and flags of the program', async () => {
    const { buildProgram } = await import('../../src/cli/program.ts');
    const declared = flagsOf(buildProgram());
    const documented = documentedFlags(readText('docs/reference/cli.md'), new Set(declared.keys()));
    const asLines = (flags: ReadonlyMap<string, readonly string[]>): readonly string[] =>
      sorted([...flags].flatMap(([command, own]) => [command, ...own.map((flag) => `${command} ${flag}`)]));
    expect(asLines(documented)).toEqual(asLines(declared));
  });
});

describe('docs/reference/events.schema.json', () => {
  interface EventSchema {
    readonly title: string;
    readonly properties: object;
  }
  const schema = JSON.parse(readText('docs/reference/events.schema.json')) as { readonly anyOf: readonly EventSchema[] };

  it('names exactly the fields of the TypeScript types, and refuses others', () => {
    const fieldsIn = (text: string): readonly string[] =>
      [...text.matchAll(/readonly (\w+)\??:/g)].map(([, name]) => name as string);
    const plan = /interface ModelPlan \{[^}]*\}/.exec(readText('src/core/policy.ts'))?.[0] ?? '';
    const ofProgress = ['phase', 'done', 'of'];
    const declared = [...fieldsIn(readText('src/core/events.ts')), ...fieldsIn(plan)].filter(
      (name) => !ofProgress.includes(name),
    );
    const named = new Set<string>();
    JSON.stringify(schema, (key, value: unknown) => {
      if (key === 'properties') for (const name of Object.keys(value as object)) named.add(name);
      return value;
    });
    expect(sorted(named)).toEqual(sorted(new Set(declared)));
    const warning = { type: 'warning', at: 1, code: 'A', message: 'b' };
    expect(schemaFault(schema as Schema, warning)).toBeUndefined();
    expect(schemaFault(schema as Schema, { ...warning, extra: 1 })).toBeDefined();
  });

  it('has the events and fields of events.md', () => {
    const documented = sectionsOf(readText('docs/reference/events.md')).flatMap(({ title, depth, lines }) => {
      const names = tableRows(lines.join('\n')).map(([name]) => /^`(\w+)\??`$/.exec(name ?? '')?.[1]);
      return depth === 2 ? [[title, sorted(names.filter((name) => name !== undefined))]] : [];
    });
    const own = ({ properties }: EventSchema) => Object.keys(properties).filter((name) => name !== 'type' && name !== 'at');
    expect(documented).toEqual(schema.anyOf.map((event) => [event.title, sorted(own(event))]));
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
    expect(sorted(described)).toEqual(sorted(existing));
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

  it('src/run/train.ts is one page: under 200 lines', () => {
    expect(
      lineCount(readText('src/run/train.ts')),
      'lines of src/run/train.ts; name its steps in other files of run/',
    ).toBeLessThan(200);
  });
});
