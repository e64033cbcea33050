/**
 * `trainyard view` serves the page of one or several runs until Ctrl-C and prints a link to it; with `--export`, writes the page with
 * everything in it to one file instead. `openView` does the first beside a command that makes a run.
 */
import { existsSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { styleText } from 'node:util';
import { TrainyardError } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import { serving } from './serve.ts';
import { count } from './text.ts';

interface ViewFlags {
  readonly host?: string;
  readonly port?: number;
  readonly token?: string;
  readonly export?: string;
  readonly filter?: string;
  readonly limit?: number;
  readonly rollout?: string;
  readonly json: boolean;
}

export async function viewCommand(paths: readonly string[], flags: ViewFlags): Promise<number> {
  const { ShownRun } = await import('../view/shown-run.ts');
  await using runs = closing(runsAmong(paths).map((path, number) => new ShownRun(String(number), path)));
  return await serving(flags.json, async (say, stopped) => {
    const { serveView } = await import('../view/view-server.ts');
    const { host, port, token = process.env['TRAINYARD_TOKEN'] } = flags;
    let links = 0;
    const onLink = (link: string): void => {
      const first = `Open ${styleText('bold', link)}`;
      const lines = links++ === 0 ? ['', `  ${first}`, ''] : [`A link was used. For another browser: ${link}`];
      say(lines, { type: 'link', link });
    };
    await using _ = await serveView({ runs: runs.all, ...defined({ host, port, token }), onLink });
    const shown = runs.all.map(({ path }) => path);
    const once = token === undefined ? ' The link works once; when it is used, another one is printed here.' : '';
    say([`Showing ${count(shown.length, 'run')}.${once} Ctrl-C ends it.`], { type: 'viewing', runs: shown });
    await stopped();
  });
}

function closing<T extends AsyncDisposable>(all: readonly T[]): AsyncDisposable & { readonly all: readonly T[] } {
  return { all, [Symbol.asyncDispose]: async () => void (await Promise.all(all.map((one) => one[Symbol.asyncDispose]()))) };
}

/** A folder that is no run itself stands for the runs in it. */
function runsAmong(paths: readonly string[]): readonly string[] {
  const isRun = (path: string): boolean => ['run.json', 'store.sqlite'].some((name) => existsSync(join(path, name)));
  return paths.flatMap((path) => {
    const isFolder = statSync(path, { throwIfNoEntry: false })?.isDirectory();
    const found = isFolder === false || isRun(path) ? [path] : isFolder ? within(path).filter(isRun) : [];
    if (found.length > 0) return found;
    throw new TrainyardError('FILE_NOT_FOUND', `${path} ${isFolder ? 'holds no run' : 'does not exist'}`, {
      hint: 'give directories of runs, such as runs/<name>, or a folder of them, such as runs',
    });
  });
}

function within(folder: string): readonly string[] {
  return readdirSync(folder)
    .toSorted()
    .map((name) => join(folder, name));
}
