/**
 * `trainyard view` serves the page of one or several runs until Ctrl-C and prints a link to it; with `--export`, writes the page with
 * everything in it to one file instead. `viewBeside` does the first for a command that makes a run.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, statSync } from 'node:fs';
import { extname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { styleText } from 'node:util';
import { TrainyardError, tried } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import { keptStore } from '../run/run-store.ts';
import { shellWord } from '../settings/settings.ts';
import { checkStoreUrl } from '../store/url.ts';
import { saying } from './output/print.ts';
import { asCalled, count } from './output/text.ts';
import { serving } from './serve.ts';

interface ViewFlags {
  readonly host?: string;
  readonly port?: number;
  readonly token?: string;
  readonly export?: string;
  readonly filter?: string;
  readonly limit?: number;
  readonly rollout?: string;
  readonly store?: string;
  readonly json: boolean;
}

export async function viewCommand(paths: readonly string[], flags: ViewFlags): Promise<number> {
  const {
    json,
    host,
    port,
    token = process.env['TRAINYARD_VIEW_TOKEN'],
    filter = '',
    limit = 50,
    rollout,
    store,
    export: to,
  } = flags;
  if (to === undefined && (flags.filter ?? flags.limit ?? rollout) !== undefined) {
    const hint = 'give --export <file.html>, or set the filter in the page';
    throw new TrainyardError('USAGE', '--filter, --limit and --rollout say what --export writes, found none', hint);
  }
  checkStoreUrl(store);
  const { ShownRun } = await import('../view/shown-run.ts');
  await using runs = closing(runsAmong(paths, store).map(({ path, url }, number) => new ShownRun(String(number), path, url)));
  if (to !== undefined) {
    const { exportView } = await import('../view/export-view.ts');
    const whole = await exportView(runs.all, { to, filter, limit, rollout });
    const line = `Wrote ${to}: ${count(runs.all.length, 'run')}, ${count(whole, 'rollout')} with conversations and tokens`;
    saying(json)([line], { type: 'exported', to, runs: runs.all.length, rollouts: whole });
    return 0;
  }
  const { serveView } = await import('../view/view-server.ts');
  (await import('../view/page-files.ts')).pageFile('page.js');
  return await serving(json, async (say, stopped) => {
    let links = 0;
    const onLink = (link: string): void => {
      const open = ['', `  Open ${styleText('bold', link)}`, ''];
      say(links++ === 0 ? open : [`The link was used. For another browser or tab: ${link}`], { type: 'link', link });
    };
    await using _ = await serveView({ runs: runs.all, ...defined({ host, port, token }), onLink });
    const single = token === undefined ? ' The link works once; when it is used, another one is printed here.' : '';
    const shown = { type: 'viewing', runs: runs.all.map(({ path }) => path) };
    say([`Showing ${count(shown.runs.length, 'run')}.${single} Ctrl-C ends it.`], shown);
    await Promise.race([stopped(), ...(process.env[CHILD] === undefined ? [] : [once(process.stdin.resume(), 'close')])]);
  });
}

/** Set for the view of a command, which ends when its standard input does: even a killed command leaves none behind. */
const CHILD = 'TRAINYARD_VIEW_CHILD';

/** For `--view`: `open` shows a run until this is disposed, which says how to see it again. Writes only to stderr, also with `--json`. */
export function viewBeside(isWanted: boolean, store?: string): Disposable & { open(run: string | null): void } {
  let view: Disposable | undefined;
  return {
    open: (run) => {
      if (isWanted && run !== null) view ??= openView(run, store);
    },
    [Symbol.dispose]: () => view?.[Symbol.dispose](),
  };
}

/** In a process of its own. */
function openView(run: string, store: string | undefined): Disposable {
  const main = fileURLToPath(new URL(`./main${extname(import.meta.url)}`, import.meta.url));
  // Nothing that the command loads beside itself: it may print, too.
  const inherited = process.execArgv.filter((argument) => argument.startsWith('--conditions'));
  // Not among the arguments, which everybody on the machine may read.
  const { password = '' } = (store && URL.parse(store)) || {};
  const secret = password === '' ? {} : { PGPASSWORD: decodeURIComponent(password) };
  // In a group of its own: Ctrl-C ends the command, and the command ends the view.
  const child = spawn(process.execPath, [...inherited, main, 'view', run, '--json'], {
    stdio: ['pipe', 'pipe', 'ignore'],
    detached: true,
    env: { ...process.env, NODE_OPTIONS: '', ...secret, [CHILD]: '1' },
  });
  const say = (text: string): boolean => process.stderr.write(`${text}\n`);
  createInterface(child.stdout!).on('line', (line) => {
    const { type, link, message, hint = '' } = tried(() => JSON.parse(line) as Readonly<Record<string, string>>) ?? {};
    if (type === 'link') say(`View it: ${link}`);
    if (type === 'error') say(`It cannot be viewed: ${message} (${hint})`);
  });
  child.on('error', (thrown) => say(`It cannot be viewed: ${thrown.message}`));
  child.stdin!.on('error', () => {});
  child.unref();
  return {
    [Symbol.dispose]: () => {
      child.stdin!.end();
      say(`View it again: ${asCalled(`trainyard view ${shellWord(run)}`)}`);
    },
  };
}

function closing<T extends AsyncDisposable>(all: readonly T[]): AsyncDisposable & { readonly all: readonly T[] } {
  return { all, [Symbol.asyncDispose]: async () => void (await Promise.all(all.map((one) => one[Symbol.asyncDispose]()))) };
}

/** A folder that is no run itself stands for the runs in it. With a database, what is not here is the id of a run in it. */
function runsAmong(paths: readonly string[], store?: string): readonly { readonly path: string; readonly url?: string }[] {
  const isRun = (path: string): boolean =>
    ['run.json', 'store.sqlite', 'store.json'].some((name) => existsSync(join(path, name)));
  return paths.flatMap((path) => {
    const isFolder = statSync(path, { throwIfNoEntry: false })?.isDirectory();
    if (isFolder === undefined && store !== undefined) return [{ path, url: store }];
    const found = isFolder === false || isRun(path) ? [path] : isFolder ? within(path).filter(isRun) : [];
    if (found.length > 0) return found.map((one) => ({ path: one, ...(store && keptStore(one).url && { url: store }) }));
    throw new TrainyardError(
      'FILE_NOT_FOUND',
      `${path} ${isFolder ? 'holds no run' : 'does not exist'}`,
      'give directories of runs, such as runs/<name>, or a folder of them, such as runs',
    );
  });
}

function within(folder: string): readonly string[] {
  return readdirSync(folder)
    .toSorted()
    .map((name) => join(folder, name));
}
