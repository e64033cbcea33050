/**
 * The project that `trainyard init` writes: files made from templates/ and the examples' tasks, for a client, a kind of model and a task.
 * Writes all files or none, and never over one that is there. What is asked and printed is the command's (cli/init.ts).
 */
import { existsSync, readFileSync } from 'node:fs';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { basename, dirname, join, posix, relative, resolve, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { boundary, TrainyardError, tried } from '../core/errors.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const [TRAIN_ROWS, HELD_OUT_ROWS] = [400, 100];

const read = (...path: readonly string[]): string => readFileSync(join(ROOT, ...path), 'utf8');

interface Client {
  readonly about: string;
  /** With the versions that Trainyard is tested with. */
  readonly dependencies: Readonly<Record<string, string>>;
}

export const clients = (): Readonly<Record<string, Client>> => JSON.parse(read('templates', 'clients.json'));

export const MODEL_KINDS = {
  local: 'the small policy that ships with Trainyard: no key, no network',
  api: 'a model behind an API, to measure; the shipped policy to train',
  tinker: 'a model at a Tinker server; the shipped policy to try it out',
} as const;

export const TASKS = {
  shop: 'answer questions about prices and stock, with two tools',
  triage: 'sort messages into four queues, with a single answer',
} as const;

export interface Answers {
  readonly client: string;
  readonly modelKind: keyof typeof MODEL_KINDS;
  readonly task: keyof typeof TASKS;
}

type Files = Readonly<Record<string, string>>;

export function projectFiles(folder: string, { client, modelKind, task }: Answers): Files {
  const { about, dependencies } = clients()[client]!;
  const isAnthropic = client === 'anthropic';
  const words: Files = {
    ...{ name: nameOf(folder), client: about, heldOutCount: String(HELD_OUT_ROWS) },
    engine: isAnthropic ? 'anthropic' : 'openai',
    apiModel: isAnthropic ? 'claude-haiku-4-5' : 'gpt-4o-mini',
    keyEnv: isAnthropic ? 'ANTHROPIC_API_KEY' : 'OPENAI_API_KEY',
  };
  const filled = (text: string, more: Files = {}): string =>
    text.replaceAll(/\{\{(\w+)\}\}/g, (_, word: string) => ({ ...words, ...more })[word] ?? '');
  const rows = (file: string, most: number): string => read('examples', task, file).split('\n', most).join('\n').concat('\n');
  const offline = modelKind === 'api' ? ' --use offline' : '';
  const own = ['task.ts', 'grader.ts', 'grader.test.ts'].map((file) => [file, read('templates', 'tasks', task, file)]);
  return {
    'agent.ts': read('templates', 'agents', `${client}.ts`),
    ...Object.fromEntries(own),
    ...(task === 'shop' && { 'catalog.json': read('examples', 'shop', 'catalog.json') }),
    'train.jsonl': rows('train.jsonl', TRAIN_ROWS),
    'held-out.jsonl': rows('held-out.jsonl', HELD_OUT_ROWS),
    'trainyard.config.ts': filled(read('templates', 'models', modelKind, 'trainyard.config.ts')),
    'package.json': json({
      ...{ name: nameOf(folder), private: true, type: 'module', engines: { node: '>=22.19' } },
      scripts: {
        test: 'node --test',
        eval: 'trainyard eval',
        train: `trainyard train${offline}`,
        ...{ view: 'trainyard view', show: 'trainyard show', typecheck: 'tsc' },
      },
      dependencies: { ...dependencies, trainyard: trainyardFor(folder), zod: own_('dependencies', 'zod') },
      devDependencies: {
        '@types/node': own_('devDependencies', '@types/node'),
        typescript: own_('devDependencies', 'typescript'),
      },
    }),
    'tsconfig.json': read('templates', 'project', 'tsconfig.json'),
    '.gitignore': read('templates', 'project', 'gitignore'),
    'README.md': filled(read('templates', 'project', 'README.md'), {
      model: filled(read('templates', 'models', modelKind, 'model.md')).trimEnd(),
    }),
  };
}

/** A version of our own package.json, so that there is one place for each. */
const own_ = (list: 'dependencies' | 'devDependencies', name: string): string => JSON.parse(read('package.json'))[list][name];

const json = (value: object): string => `${JSON.stringify(value, null, 2)}\n`;

/** A name that npm accepts. */
function nameOf(folder: string): string {
  const name = basename(resolve(folder))
    .toLowerCase()
    .replaceAll(/[^a-z0-9._-]+/g, '-')
    .replace(/^[._-]+/, '');
  return name || 'my-agent';
}

/** This version; or, if this Trainyard comes from a tarball or a clone, where that is. */
export function trainyardFor(folder: string, root = ROOT): string {
  const at = (path: string): string => `file:${relative(resolve(folder), path).split(sep).join(posix.sep)}`;
  const installed = dirname(resolve(root));
  if (basename(installed) !== 'node_modules') return at(root);
  const lock = tried(() => JSON.parse(readFileSync(join(installed, '.package-lock.json'), 'utf8')));
  const { resolved = '' } = lock?.packages?.['node_modules/trainyard'] ?? {};
  if (resolved.startsWith('file:')) return at(resolve(dirname(installed), resolved.slice('file:'.length)));
  return JSON.parse(read('package.json')).version;
}

/** Whether the project can be installed: a clone must be built first. */
export const isBuilt = (): boolean => existsSync(join(ROOT, 'dist', 'cli', 'main.js'));
export const CLONE = ROOT;

/** Throws USAGE if one of the files is there. Leaves nothing behind if one cannot be written. */
export async function writeFiles(folder: string, files: Files): Promise<void> {
  const there = Object.keys(files).filter((name) => existsSync(join(folder, name)));
  if (there.length > 0) {
    throw new TrainyardError('USAGE', `${folder} holds already ${there.join(', ')}; nothing was written`, {
      hint: 'name a new folder; for an agent that is there already: trainyard init --here <file>',
    });
  }
  const made: string[] = [];
  await boundary('USAGE', `${folder} cannot be written`, async () => {
    const created = await mkdir(folder, { recursive: true });
    if (created !== undefined) made.push(created);
    try {
      for (const [name, text] of Object.entries(files)) {
        await writeFile(join(folder, name), text, { flag: 'wx' });
        made.push(join(folder, name));
      }
    } catch (failure) {
      for (const path of made.toReversed()) await rm(path, { recursive: true, force: true });
      throw failure;
    }
  });
}
