/**
 * The project that `trainyard init` writes: files made from templates/ and the examples' tasks, for a client, a kind of model and a task.
 * Writes all files or none, and never over one that is there. What is asked and printed is the command's (cli/init.ts).
 */
import { existsSync, readFileSync } from 'node:fs';
import { mkdir, rename, rm, writeFile } from 'node:fs/promises';
import { basename, dirname, join, relative, resolve, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { boundary, TrainyardError, tried } from '../core/errors.ts';

export const PACKAGE = fileURLToPath(new URL('../..', import.meta.url));
const TRAIN_ROWS = 400;
const HELD_OUT_ROWS = 100;

type Texts = Readonly<Record<string, string>>;
const read = (...path: readonly string[]): string => readFileSync(join(PACKAGE, ...path), 'utf8');

interface Client {
  readonly about: string;
  /** With the versions that Trainyard is tested with. */
  readonly dependencies: Texts;
}
export const clients = (): Readonly<Record<string, Client>> => JSON.parse(read('templates/clients.json'));

export const MODEL_KINDS = {
  local: 'the small policy that ships with Trainyard: no key, no network',
  api: 'a model behind an API, to measure; the shipped policy to train',
  tinker: 'a model at a Tinker server; the shipped policy to try it out',
} as const;

export const TASKS = {
  shop: 'answer questions about prices and stock, with two tools',
  triage: 'sort messages into four queues, with a single answer',
} as const;

interface Answers {
  readonly client: string;
  readonly modelKind: keyof typeof MODEL_KINDS;
  readonly task: keyof typeof TASKS;
}

export function projectFiles(folder: string, { client, modelKind, task }: Answers): Texts {
  const { about, dependencies } = clients()[client]!;
  const ours = JSON.parse(read('package.json'));
  // What npm accepts as a name.
  const name =
    basename(resolve(folder))
      .toLowerCase()
      .replaceAll(/[^a-z0-9._-]+/g, '-')
      .replace(/^[._-]+/, '') || 'my-agent';
  const [engine, apiModel] = client === 'anthropic' ? ['anthropic', 'claude-haiku-4-5'] : ['openai', 'gpt-4o-mini'];
  const words: Texts = {
    name,
    client: about,
    heldOutCount: String(HELD_OUT_ROWS),
    engine,
    apiModel,
    keyEnv: `${engine.toUpperCase()}_API_KEY`,
  };
  const filled = (text: string, more: Texts = {}): string =>
    text.replaceAll(/\{\{(\w+)\}\}/g, (_, word: string) => ({ ...words, ...more })[word] ?? '');
  const ofTask = join('templates/tasks', task);
  const ofModel = join('templates/models', modelKind);
  const rows = (file: string, most: number): string => `${read('examples', task, file).split('\n', most).join('\n')}\n`;
  const scripts = {
    test: 'node --test',
    eval: 'trainyard eval',
    train: `trainyard train${modelKind === 'api' ? ' --use offline' : ''}`,
    view: 'trainyard view runs',
    show: 'trainyard show',
    typecheck: 'tsc',
  };
  const { '@types/node': types, typescript } = ours.devDependencies;
  const project = {
    name,
    private: true,
    type: 'module',
    engines: ours.engines,
    scripts,
    dependencies: { ...dependencies, trainyard: trainyardFor(folder), zod: ours.dependencies.zod },
    devDependencies: { '@types/node': types, typescript },
  };
  return {
    'agent.ts': read('templates/agents', `${client}.ts`),
    ...Object.fromEntries(['task.ts', 'grader.ts', 'grader.test.ts'].map((file) => [file, read(ofTask, file)])),
    ...(task === 'shop' && { 'catalog.json': read('examples/shop/catalog.json') }),
    'train.jsonl': rows('train.jsonl', TRAIN_ROWS),
    'held-out.jsonl': rows('held-out.jsonl', HELD_OUT_ROWS),
    'trainyard.config.ts': filled(read(ofModel, 'trainyard.config.ts')),
    'package.json': `${JSON.stringify(project, null, 2)}\n`,
    'tsconfig.json': read('templates/project/tsconfig.json'),
    '.gitignore': read('templates/project/gitignore'),
    'README.md': filled(read('templates/project/README.md'), { model: filled(read(ofModel, 'model.md')).trimEnd() }),
  };
}

/** This version; or, if this Trainyard comes from a tarball or a clone, where that is. */
export function trainyardFor(folder: string, root = PACKAGE): string {
  const at = (path: string): string => `file:${relative(resolve(folder), path).split(sep).join('/')}`;
  const modules = dirname(resolve(root));
  if (basename(modules) !== 'node_modules') return at(root);
  const lock = tried(() => JSON.parse(readFileSync(join(modules, '.package-lock.json'), 'utf8')));
  const resolved: string = lock?.packages?.['node_modules/trainyard']?.resolved ?? '';
  return resolved.startsWith('file:')
    ? at(resolve(dirname(modules), resolved.slice(5)))
    : JSON.parse(read('package.json')).version;
}

/** Throws USAGE if one of the files is there. Leaves nothing behind if one cannot be written. */
export async function writeFiles(folder: string, files: Texts): Promise<void> {
  const there = Object.keys(files).filter((name) => existsSync(join(folder, name)));
  if (there.length > 0) {
    throw new TrainyardError(
      'USAGE',
      `${folder}: expected none of these files, found ${there.join(', ')}; nothing was written`,
      'name a new folder; for an agent that you have: trainyard init --here <file>',
    );
  }
  // A new folder has its name once it is complete, so that a kill leaves no half project.
  const isNew = !existsSync(folder);
  const into = isNew ? `${folder}.unfinished` : folder;
  const made: (string | undefined)[] = [];
  await boundary('USAGE', `${folder} cannot be written`, async () => {
    try {
      if (isNew) await rm(into, { recursive: true, force: true });
      made.push(await mkdir(into, { recursive: true }));
      for (const [name, text] of Object.entries(files)) {
        await writeFile(join(into, name), text, { flag: 'wx' });
        made.push(join(into, name));
      }
      if (isNew) await rename(into, folder);
    } catch (failure) {
      for (const path of made) if (path !== undefined) await rm(path, { recursive: true, force: true });
      throw failure;
    }
  });
}
