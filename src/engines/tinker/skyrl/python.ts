/**
 * The Python that SkyRL runs in: the interpreter the user names, which must have everything already, or a virtual environment made from
 * PyPI in the user's cache folder, complete or absent, that later starts use again. Checks what cannot work before anything is installed
 * or started, and names what is missing. Starts no server.
 */
import { execFile } from 'node:child_process';
import { hash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, readFile, rename, rm } from 'node:fs/promises';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { TrainyardError } from '../../../core/errors.ts';
import { parsedJson } from '../../../core/json.ts';

export const SERVER = fileURLToPath(new URL('./skyrl_server.py', import.meta.url));
const REQUIREMENTS = fileURLToPath(new URL('./requirements.txt', import.meta.url));
const CANDIDATES = ['python3.12', 'python3.13', 'python3.14', 'python3'];
const LEAST = [3, 12] as const;
const LOOK_MS = 120_000;
const INSTALL_MS = 3_600_000;

interface PythonRequest {
  /** Undefined: one of our own. */
  readonly python: string | undefined;
  readonly cpu: boolean;
  readonly stop: AbortSignal;
  readonly tell: (line: string) => void;
}

/** What `skyrl_server.py check` prints. Without Python 3.12, only the version. */
const checkSchema = z.object({
  version: z.tuple([z.int(), z.int()]).rest(z.int()),
  missing: z.array(z.string()).default([]),
  skyrl: z.string().nullish(),
  /** Where jax computes: cpu, gpu or tpu. */
  platform: z.string().nullish(),
});
type Check = z.infer<typeof checkSchema>;

/** Throws USAGE or, if PyPI's packages cannot be installed, DOWNLOAD_FAILED. */
export async function preparePython(request: PythonRequest): Promise<{ readonly python: string; readonly skyrl: string }> {
  const hint = 'start it in WSL or on a Linux machine';
  if (process.platform === 'win32') throw new TrainyardError('USAGE', 'SkyRL’s server does not run on Windows', hint);
  if (!request.cpu) await checkGpu(request.stop);
  const python = request.python ?? (await ownPython(request));
  const found = await check(python, request.stop);
  const { missing, skyrl, platform } = found;
  if (!isNewEnough(found)) throw tooOld(`${python} is Python ${found.version.join('.')}, expected 3.12 or newer`);
  if (missing.length > 0 || skyrl == null) {
    throw new TrainyardError(
      'USAGE',
      `${python} cannot run SkyRL: it lacks ${missing.join(', ')}`,
      `${python} -m pip install -r ${REQUIREMENTS}, or leave --python out`,
    );
  }
  if (request.cpu || platform !== 'cpu') return { python, skyrl };
  throw new TrainyardError(
    'USAGE',
    `the jax of ${python} sees no GPU`,
    `${python} -m pip install "jax[cuda13]" of the version it has, or leave --python out; --cpu runs without a GPU, slowly`,
  );
}

/** The user's cache folder, for what is made once. */
export function cacheFolder({ XDG_CACHE_HOME }: NodeJS.ProcessEnv = process.env): string {
  return join(XDG_CACHE_HOME || join(homedir(), '.cache'), 'trainyard');
}

async function checkGpu(stop: AbortSignal): Promise<void> {
  const { error, stderr, stdout } = await run('nvidia-smi', ['-L'], LOOK_MS, stop);
  if (error === undefined) return;
  const said = `${stderr}${stdout}`.trim().split('\n')[0];
  const why = error.code === 'ENOENT' ? 'there is no nvidia-smi' : `nvidia-smi failed: ${said || error.message}`;
  throw new TrainyardError(
    'USAGE',
    `no NVIDIA GPU was found on this machine: ${why}`,
    'run it where the GPU is; --cpu runs on the processor, slowly, to try it out',
  );
}

async function ownPython({ cpu, stop, tell }: PythonRequest): Promise<string> {
  const text = await readFile(REQUIREMENTS, 'utf8');
  const jax = /^jax==(\S+)$/m.exec(text)?.[1];
  const extra = cpu ? [] : [`jax[cuda13]==${jax}`];
  const folder = join(cacheFolder(), `skyrl-${hash('sha256', [text, ...extra].join('\n'), 'hex').slice(0, 12)}`);
  const python = join(folder, 'bin', 'python');
  if (existsSync(python)) return python;
  const base = await findPython(stop);
  const unfinished = `${folder}.unfinished-${process.pid}`;
  tell(`Installing SkyRL from PyPI into ${folder}, once: several GB, some minutes.`);
  try {
    await mkdir(dirname(folder), { recursive: true });
    await mustRun(base, ['-m', 'venv', '--clear', unfinished], stop);
    const pip = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '-r', REQUIREMENTS, ...extra];
    await mustRun(join(unfinished, 'bin', 'python'), pip, stop);
    // Programs in bin/ name the old path, but only the interpreter is used. Another start may have been faster.
    await rename(unfinished, folder).catch((thrown: unknown) => {
      if (!existsSync(python)) throw thrown;
    });
  } finally {
    await rm(unfinished, { recursive: true, force: true });
  }
  return python;
}

async function findPython(stop: AbortSignal): Promise<string> {
  const found: string[] = [];
  for (const name of CANDIDATES) {
    const { error, stdout } = await run(name, ['-c', 'import sys, venv; print(*sys.version_info[:2])'], LOOK_MS, stop);
    const [major = 0, minor = 0] = stdout.split(' ').map(Number);
    if (error === undefined && isNewEnough({ version: [major, minor] })) return name;
    if (error === undefined) found.push(`${name} is ${major}.${minor}`);
  }
  const seen = found.length === 0 ? 'none was found' : found.join(', ');
  throw tooOld(`SkyRL needs Python 3.12 or newer with the module venv: ${seen}`);
}

async function check(python: string, stop: AbortSignal): Promise<Check> {
  const { error, stdout, stderr } = await run(python, [SERVER, 'check'], LOOK_MS, stop);
  const found = checkSchema.safeParse(parsedJson(stdout.trim().split('\n').at(-1) ?? ''));
  if (error === undefined && found.success) return found.data;
  const said = stderr.trim().split('\n').at(-1) || error?.message || 'it printed something else than what was asked for';
  throw new TrainyardError(
    'USAGE',
    `${python} is not a Python that works: ${said}`,
    'give --python the path of a Python 3.12 or newer, or leave it out',
  );
}

function isNewEnough({ version: [major, minor] }: { readonly version: readonly [number, number, ...number[]] }): boolean {
  return major > LEAST[0] || (major === LEAST[0] && minor >= LEAST[1]);
}

function tooOld(found: string): TrainyardError {
  return new TrainyardError('USAGE', found, 'install Python 3.12, or give --python the path of one');
}

async function mustRun(command: string, args: readonly string[], stop: AbortSignal): Promise<void> {
  const { error, stderr } = await run(command, args, INSTALL_MS, stop);
  if (error === undefined) return;
  const said = stderr.trim().split('\n').slice(-2).join(' ') || error.message;
  throw new TrainyardError(
    'DOWNLOAD_FAILED',
    `${[command, ...args.slice(0, 3)].join(' ')} failed: ${said}`,
    'nothing was kept; try again, or give --python one that has SkyRL',
  );
}

interface Ran {
  /** Undefined if it ended well. */
  readonly error: (Error & { readonly code?: unknown }) | undefined;
  readonly stdout: string;
  readonly stderr: string;
}

async function run(command: string, args: readonly string[], timeout: number, signal: AbortSignal): Promise<Ran> {
  const ran = await new Promise<Ran>((resolve) => {
    execFile(command, args, { timeout, signal, maxBuffer: 2 ** 26 }, (error, stdout, stderr) =>
      resolve({ error: error ?? undefined, stdout, stderr }),
    );
  });
  if (signal.aborted) throw new TrainyardError('CANCELLED', 'interrupted before the server began');
  return ran;
}
