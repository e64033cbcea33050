/**
 * `trainyard doctor`: looks at what a training on this machine needs, and says for each part what was found, what that means and what to do.
 * A `problem` stops training here and makes the exit code 1; a `note` only limits something. Starts nothing but a trial of the sandbox. A key
 * is sent only to the server it is for, and never printed.
 */
import { accessSync, constants, existsSync, readdirSync, readFileSync, statfsSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { styleText } from 'node:util';
import { printableLine } from '../core/describe.ts';
import { messageOf, type TrainyardError, tried } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import { bestVariant, compileKernels, isRunnable } from '../nn/compile.ts';
import { findBubblewrap } from '../processes/bubblewrap.ts';
import { baseURLOf } from '../run/check-settings.ts';
import { sizeText } from '../run/model-download.ts';
import { hubCache } from '../run/model-path.ts';
import { modelsAt } from '../run/open-policy.ts';
import { APIS, type ApiName, BASE_MODEL } from '../run/settings.ts';
import { asCalled, count } from './text.ts';

interface Finding {
  readonly name: string;
  readonly level: 'ok' | 'note' | 'problem';
  readonly found: string;
  readonly todo?: string;
}

/** Bytes: below the first, a long run may fill the disk or the memory; below the second, none can start. */
const [LITTLE, TOO_LITTLE] = [2e9, 1e8];
const HEALTH_MS = 3_000;

export async function doctorCommand({ json }: { readonly json: boolean }): Promise<number> {
  const findings = [
    { name: 'node', level: 'ok', found: process.versions.node } as const,
    ...[system(), kernels(), memory(), sandbox(), disk('.', 'disk'), disk(hubCache(), 'model cache'), models()],
    ...(await Promise.all([tinker(), api('openai'), api('anthropic')])),
    ...packages(),
  ];
  const ok = findings.every(({ level }) => level !== 'problem');
  if (json) console.log(JSON.stringify({ type: 'doctor', ok, findings }));
  else {
    for (const line of findings.flatMap(linesOf)) console.log(line);
    console.log(ok ? 'Training can run here.' : 'Training cannot run here before the problems are solved.');
  }
  return ok ? 0 : 1;
}

const COLOURS = { ok: 'green', note: 'yellow', problem: 'red' } as const;

function linesOf({ name, level, found, todo }: Finding): readonly string[] {
  const head = `${styleText(COLOURS[level], level.padEnd(8))} ${name.padEnd(20)} ${printableLine(found)}`;
  return todo === undefined ? [head] : [head, `${' '.repeat(30)}${asCalled(printableLine(todo))}`];
}

function finding(name: string, level: Finding['level'], found: string, todo?: string): Finding {
  return { name, level, found, ...defined({ todo }) };
}

function system(): Finding {
  const found = `${process.platform} ${process.arch}, ${count(availableParallelism(), 'core')}`;
  if (process.platform === 'linux') return finding('system', 'ok', found);
  const todo = 'Trainyard has not been run on this system: training and evaluating should work, isolation needs Linux';
  return finding('system', 'note', found, todo);
}

function kernels(): Finding {
  if (!isRunnable('plain'))
    return finding(
      'kernels',
      'problem',
      'this Node runs no WebAssembly with SIMD',
      'use another build of Node, or another machine',
    );
  const { variant, wide } = compileKernels(bestVariant());
  const found = `${variant} SIMD, ${wide ? 256 : 128}-bit vectors`;
  return finding('kernels', 'ok', variant === 'plain' ? `${found}; slower than relaxed SIMD, which this Node lacks` : found);
}

function memory(): Finding {
  const free = process.availableMemory();
  const todo = 'the base policy fits; a larger model may not: close other programs, or lower --context';
  return finding('memory', free < LITTLE ? 'note' : 'ok', `${sizeText(free)} free`, free < LITTLE ? todo : undefined);
}

function sandbox(): Finding {
  try {
    const { path, hasProc } = findBubblewrap();
    return finding(
      'sandbox',
      'ok',
      `${path} works${hasProc ? '' : '; /proc is empty in it, which programs that read it notice'}`,
    );
  } catch (thrown) {
    const without = 'isolated rollouts (--isolation process) and graders that run code refuse to start';
    return finding('sandbox', 'note', `${messageOf(thrown)}; ${without}`, (thrown as TrainyardError).hint);
  }
}

/** Of the nearest folder that exists. */
function disk(path: string, name: string): Finding {
  let folder = resolve(path);
  while (!existsSync(folder)) folder = dirname(folder);
  const isHere = path === '.';
  if (tried(() => accessSync(folder, constants.W_OK) ?? true) === undefined)
    return finding(name, isHere ? 'problem' : 'note', `${folder} cannot be written`, 'go to a folder that can be written');
  const { bavail, bsize } = statfsSync(folder);
  const free = bavail * bsize;
  const level = free >= LITTLE ? 'ok' : isHere && free < TOO_LITTLE ? 'problem' : 'note';
  return finding(
    name,
    level,
    `${sizeText(free)} free in ${folder}`,
    level === 'ok' ? undefined : 'runs keep rollouts and checkpoints',
  );
}

function models(): Finding {
  if (!existsSync(join(BASE_MODEL, 'model.safetensors')))
    return finding('models', 'problem', 'the base policy is missing from the package', 'install trainyard again');
  const cached = (tried(() => readdirSync(hubCache())) ?? []).filter((name) => name.startsWith('models--'));
  const names = ['the base policy', ...cached.map((name) => name.slice('models--'.length).replace('--', '/'))];
  return finding('models', 'ok', names.join(', '), cached.length > 0 ? undefined : 'for real models: trainyard model get <name>');
}

async function tinker(): Promise<Finding> {
  const base = baseURLOf('tinker', {});
  if (base === undefined) return finding('tinker', 'ok', 'not used: TINKER_BASE_URL is not set');
  const url = `${base.replace(/\/+$/, '')}/api/v1/healthz`;
  const answer = await fetch(url, { signal: AbortSignal.timeout(HEALTH_MS) }).catch(() => undefined);
  if (answer?.ok) return finding('tinker', 'ok', `${hostOf(base)} answers`);
  const how = answer === undefined ? 'does not answer' : `answers ${answer.status}`;
  return finding('tinker', 'note', `${hostOf(base)} ${how}`, 'check TINKER_BASE_URL');
}

async function api(name: ApiName): Promise<Finding> {
  const { urlEnv, keyEnv } = APIS[name];
  const base = baseURLOf(name, {});
  if (base === undefined) return finding(name, 'ok', `not used: neither ${urlEnv} nor ${keyEnv} is set`);
  const offered = await modelsAt(base, name, process.env[keyEnv] ?? '');
  const host = hostOf(base);
  if (offered === undefined) return finding(name, 'note', `${host} cannot be reached`, `check ${urlEnv} and the network`);
  if (offered.length === 0) return finding(name, 'note', `${host} answers, but lists no models`, `check ${keyEnv} and ${urlEnv}`);
  return finding(name, 'ok', `${host} offers ${count(offered.length, 'model')}`);
}

/** The rest of an address may hold a password. */
function hostOf(url: string): string {
  return tried(() => new URL(url).host) || 'the address';
}

/** The optional peers, as this folder's programs find them. */
function packages(): readonly Finding[] {
  const { peerDependencies } = manifestIn(resolve(import.meta.dirname, '../..'))!;
  return Object.keys(peerDependencies ?? {}).map((name) => {
    for (let folder = resolve('.'); ; folder = dirname(folder)) {
      const found = manifestIn(join(folder, 'node_modules', name));
      if (found !== undefined) return finding(name, 'ok', found.version);
      if (folder === dirname(folder)) return finding(name, 'ok', 'not installed; optional');
    }
  });
}

function manifestIn(folder: string) {
  type Manifest = { readonly version: string; readonly peerDependencies?: object };
  return tried(() => JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as Manifest);
}
