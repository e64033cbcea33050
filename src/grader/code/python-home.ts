/**
 * Where Python really is: `python3` may be a script that looks for one (pyenv), or one of a virtual environment, and what it needs lies
 * somewhere else, often in a home directory that the sandbox does not show.
 */
import { execFileSync } from 'node:child_process';
import { realpathSync } from 'node:fs';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import type { ReadableFile } from '../../processes/sandbox/program.ts';

export interface PythonHome {
  readonly program: string;
  readonly readable: readonly ReadableFile[];
}

const ASK = `
import json, os, sys
print(json.dumps([os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable), sys.base_prefix, sys.base_exec_prefix]))
`;
const ASK_MS = 20_000;

let home: PythonHome | undefined;

/** Throws SANDBOX_MISSING where there is no Python 3. Asked once per process. */
export function pythonHome(): PythonHome {
  home ??= find();
  return home;
}

function find(): PythonHome {
  try {
    const said = execFileSync('python3', ['-I', '-c', ASK], {
      encoding: 'utf8',
      timeout: ASK_MS,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    const [program, ...prefixes] = JSON.parse(said) as string[];
    const folders = [...new Set(prefixes.map((prefix) => realpathSync(prefix)))].filter(
      (folder) => !/^\/(usr(\/local)?)?$/.test(folder),
    );
    return { program: program!, readable: folders.map((source) => ({ source })) };
  } catch (cause) {
    throw new TrainyardError('SANDBOX_MISSING', `python3 could not be run: ${messageOf(cause)}`, {
      hint: 'install Python 3 and put it on the PATH: it runs the code under test',
      cause,
    });
  }
}
