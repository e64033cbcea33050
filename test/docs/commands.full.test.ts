/**
 * Every command of README.md, the guide and the pages on other systems is executed, in a folder such as a reader has: an agent, its tasks, and what the commands
 * before it on the same page made. `command-table.ts` says how; what cannot be executed is at least parsed by the real command line.
 */
import { mkdir, readdir, readFile, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { buildProgram } from '../../src/cli/program.ts';
import { type Ended, ROOT, scratch, start } from '../cli/command.ts';
import { API_KEY, type ServerProcess, startServer } from '../e2e/tinker-server.ts';
import { hubServer } from '../fixtures/hub-server.ts';
import { fencedBlocks } from '../house/markdown.ts';
import { listFiles, readText } from '../house/sources.ts';
import { BEFORE, SMALLER, TABLE, type Way } from './command-table.ts';

const PAGES = ['README.md', ...['guide', 'coming-from'].flatMap((folder) => listFiles(`docs/${folder}`, '.md'))];
const scripts = (JSON.parse(readText('package.json')) as { readonly scripts: Readonly<Record<string, string>> }).scripts;
const MAIN = 'node --conditions=trainyard-source src/cli/main.ts';

interface Written {
  /** As it is on the page. */
  readonly line: string;
  readonly command: string;
  /** Where its block went with `cd`, from the page's folder. */
  readonly folder: string;
}

/** A script of package.json that is a command of ours counts as that command. */
function asTrainyard(part: string): string {
  const plain = part.replace(/^npx trainyard\b/, 'trainyard').replace(/^npm run trainyard --/, 'trainyard');
  const script = scripts[/^npm run (\S+)$/.exec(plain)?.[1] ?? ''];
  return script?.startsWith(MAIN) ? script.replace(MAIN, 'trainyard') : plain;
}

function commandsOf(block: string): readonly Written[] {
  let folder = '.';
  const lines = block.replaceAll('\\\n', ' ').split('\n');
  return lines.flatMap((line) =>
    line
      .replace(/(^|\s+)#.*$/, '')
      .split('&&')
      .map((part) => part.trim())
      .flatMap((part) => {
        if (part.startsWith('cd ')) folder = join(folder, part.slice(3));
        return part === '' || part.startsWith('cd ') ? [] : [{ line, command: asTrainyard(part), folder }];
      }),
  );
}

const rowOf = (command: string): Way | undefined => TABLE.find(([pattern]) => pattern.test(command))?.[1];

const blocksOf = (page: string): readonly (readonly Written[])[] => fencedBlocks(readText(page), 'sh').map(commandsOf);

const writtenOn = (page: string): readonly Written[] => blocksOf(page).flat();

/** An agent with tasks, the examples and models of the repository, and few of their held-out tasks. */
async function reader(dir: string): Promise<void> {
  const rows = (path: string, count: number): string => readText(path).split('\n').slice(0, count).join('\n');
  const files = {
    'my-agent.ts': readText('examples/triage/agent.ts'),
    'agent.ts': readText('examples/triage/agent.ts'),
    'train.jsonl': rows('examples/triage/train.jsonl', 48),
    'held-out.jsonl': rows('examples/triage/held-out.jsonl', 16),
    'few/shop.jsonl': rows('examples/shop/held-out.jsonl', 16),
    'few/triage.jsonl': rows('examples/triage/held-out.jsonl', 16),
    'talks.jsonl': `${fencedBlocks(readText('docs/guide/train.md'), 'json').join('\n')}\n`.repeat(8),
  };
  await mkdir(join(dir, 'few'));
  for (const [name, text] of Object.entries(files)) await writeFile(join(dir, name), text);
  for (const name of ['examples', 'models']) await symlink(join(ROOT, name), join(dir, name));
  await symlink(join(ROOT, 'models/base'), join(dir, 'qwen3-8b'));
}

let home: Awaited<ReturnType<typeof scratch>>;
let api: { readonly serving: ReturnType<typeof start>; readonly baseURL: string; readonly apiKey: string };
let tinker: ServerProcess;

beforeAll(async () => {
  home = await scratch();
  const serving = start(['serve', '--json', '--threads', '1', '--run', join(home.dir, 'api')]);
  const [server] = await Promise.all([startServer(home.dir), serving.prints('\n')]);
  tinker = server;
  api = { serving, ...(JSON.parse(serving.stdout().split('\n')[0]!) as { readonly baseURL: string; readonly apiKey: string }) };
});
afterAll(async () => {
  api.serving.child.kill('SIGINT');
  await Promise.all([api.serving.ended, tinker.kill()]);
  await home.remove();
});

const wordsOf = (command: string): readonly string[] =>
  [...command.matchAll(/"([^"]*)"|(\S+)/g)].map(([, quoted, word]) => quoted ?? word ?? '');

/** The hub of a download has the model that was asked for, and no other. */
async function hubFor(words: readonly string[]) {
  const names = (await readdir(join(ROOT, 'models/base'))).filter((name) => name !== 'README.md');
  const files = await Promise.all(names.map(async (name) => [name, await readFile(join(ROOT, 'models/base', name))] as const));
  return await hubServer(words[2] ?? '', new Map(files));
}

async function executed(
  dir: string,
  { command, folder }: Omit<Written, 'line'>,
  way: Way & { readonly with: string },
): Promise<Ended> {
  // What a page pipes elsewhere is executed here alone.
  const local = command.replace(/ \| .*/, '').replace('http://localhost:8080/v1', api.baseURL);
  const small = SMALLER.reduce((text, [from, to]) => text.replace(from, to), `${local} ${way.with}`);
  const words = wordsOf(small).slice(1);
  await using hub = words[0] === 'model' ? await hubFor(words) : undefined;
  const environment = {
    ...{ OPENAI_BASE_URL: api.baseURL, OPENAI_API_KEY: api.apiKey, TINKER_BASE_URL: tinker.baseURL, TINKER_API_KEY: API_KEY },
    ...{ HF_HUB_CACHE: join(dir, 'hub'), HF_ENDPOINT: hub?.url ?? 'http://127.0.0.1:1' },
  };
  const exports = Object.entries(environment).map(([name, value]) => `${name}='${value}'`);
  const running = start(words, join(dir, folder), `export ${exports.join(' ')}`);
  if (way.kind === 'served') {
    await running.prints(way.until);
    running.child.kill('SIGINT');
  }
  return await running.ended;
}

async function linked(project: string): Promise<void> {
  await mkdir(join(project, 'node_modules'));
  await symlink(ROOT, join(project, 'node_modules/trainyard'));
}

/** Throws what the command line says about a wrong verb, argument or flag. */
async function parse(command: string): Promise<void> {
  const program = buildProgram();
  for (const verb of program.commands) verb.action(() => {});
  await program.parseAsync([...wordsOf(command).slice(1)], { from: 'user' });
}

/** Commands in the text of a page, up to what stands for something else. A verb alone is a mention. */
function mentionedOn(page: string): readonly string[] {
  const prose = readText(page).replace(/^\s*```[\s\S]*?^\s*```/gm, '');
  const codes = [...prose.matchAll(/`((?:npx |npm run )?trainyard [^`]+|npm run [^`]+)`/g)].map(([, code = '']) => code);
  return codes.map((code) => asTrainyard(code.replace(/\s*[…|].*$/s, '').replace(/\s+/g, ' ')));
}

describe('commands in the text', () => {
  it.each(PAGES)('of %s are right', async (page) => {
    for (const command of mentionedOn(page)) {
      const [program, verb = '', ...rest] = wordsOf(command);
      if (program === 'npm') expect(Object.keys(scripts), command).toContain(rest[0]);
      else if (rest.length === 0 && verb !== '') expect(buildProgram().commands.map((one) => one.name())).toContain(verb);
      else if (verb !== '') await parse(command).catch((thrown: unknown) => Promise.reject(new Error(`${command}: ${thrown}`)));
    }
  });
});

describe('the table of commands', () => {
  it('has a row for every command, and a command for every row', () => {
    const commands = PAGES.flatMap(blocksOf).flatMap((block) => block.map(({ command }) => command));
    expect(commands.filter((command) => rowOf(command) === undefined)).toEqual([]);
    const used = new Set(commands.map((command) => TABLE.find(([pattern]) => pattern.test(command))));
    expect(TABLE.filter((row) => !used.has(row)).map(([pattern]) => String(pattern))).toEqual([]);
  });
});

describe.concurrent('the commands of', () => {
  it.each(PAGES.filter((page) => writtenOn(page).length > 0))('%s do what they say', async (page) => {
    const dir = join(home.dir, page.replaceAll(/\W+/g, '-'));
    await mkdir(dir);
    await reader(dir);
    const before = (BEFORE[page] ?? []).map((command) => ({ line: `before: ${command}`, command, folder: '.' }));
    for (const written of [...before, ...writtenOn(page)]) {
      const way = rowOf(written.command);
      if (way?.kind === 'parsed') await parse(written.command);
      if (way?.kind === 'linked') await linked(join(dir, written.folder));
      if (way?.kind !== 'executed' && way?.kind !== 'served') continue;
      const { code, stdout, stderr } = await executed(dir, written, way);
      expect(code, `${written.line}\n${stdout.slice(-1000)}${stderr}`).toBe(0);
    }
  });
});
