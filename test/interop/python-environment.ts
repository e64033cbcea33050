/**
 * The Python virtual environment of the interoperability checks, made from PyPI under `.interop/` and kept there.
 *
 * Each requirements file is installed once; a changed file is installed again. Where Python or PyPI cannot be had, the answer says
 * why, and whoever asked skips its checks: that is no failure of ours. Requirements that PyPI cannot meet are one.
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

export const root = join(import.meta.dirname, '../..');
export const cache = join(root, '.interop');

export type Prepared =
  | { readonly kind: 'ready'; readonly python: string }
  | { readonly kind: 'missing'; readonly why: string }
  | { readonly kind: 'broken'; readonly why: string };

const VENV = join(cache, 'venv');
const PYTHON = join(VENV, 'bin/python');
const CANDIDATES = ['python3.13', 'python3.12', 'python3.11', 'python3'];
const AT_LEAST_3_11 = 'import sys, venv; sys.exit(sys.version_info < (3, 11))';
const INSTALL_LIMIT_MS = 30 * 60_000;

/** Installs `test/interop/requirements-<name>.txt`, if it is not there already. Large downloads, so it tells what it does. */
export function preparePython(name: string, tell: (line: string) => void): Prepared {
  const requirements = join(import.meta.dirname, `requirements-${name}.txt`);
  const wanted = createHash('sha256').update(readFileSync(requirements)).digest('hex');
  const mark = join(VENV, `installed-${name}`);
  if (existsSync(mark) && readFileSync(mark, 'utf8') === wanted && works(PYTHON)) return { kind: 'ready', python: PYTHON };

  if (!works(PYTHON)) {
    const python = CANDIDATES.find(works);
    if (python === undefined) return { kind: 'missing', why: 'there is no python3 of at least 3.11 with the module venv' };
    mkdirSync(cache, { recursive: true });
    const made = run(python, ['-m', 'venv', '--clear', VENV]);
    if (made !== undefined) return { kind: 'missing', why: `python -m venv failed: ${made}` };
  }
  tell(`installing ${requirements.slice(root.length + 1)} from PyPI into .interop/venv (several GB, some minutes)`);
  const installed = run(PYTHON, ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '-r', requirements]);
  if (installed !== undefined) {
    return { kind: reachesPyPI() ? 'broken' : 'missing', why: `pip could not install ${name} from PyPI: ${installed}` };
  }
  writeFileSync(mark, wanted);
  return { kind: 'ready', python: PYTHON };
}

/** By a package of a few kilobytes. */
function reachesPyPI(): boolean {
  const args = ['--quiet', '--no-deps', '--no-cache-dir', '--dest', join(cache, 'probe'), 'typing-extensions'];
  return run(PYTHON, ['-m', 'pip', 'download', ...args]) === undefined;
}

function works(python: string): boolean {
  return spawnSync(python, ['-c', AT_LEAST_3_11]).status === 0;
}

/** The end of what went wrong, or undefined. */
function run(command: string, args: readonly string[]): string | undefined {
  const { status, stderr, error } = spawnSync(command, args, { encoding: 'utf8', timeout: INSTALL_LIMIT_MS });
  if (status === 0) return undefined;
  const said = stderr?.trim().split('\n').slice(-2).join(' ') ?? '';
  return said || error?.message || `exit status ${status}`;
}
