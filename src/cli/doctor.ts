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
import { bestVariant, compileKernels, isRunnable } from '../engines/embedded/compile.ts';
import { sizeText } from '../engines/model-download.ts';
import { hubCache } from '../engines/model-path.ts';
import { modelsAt } from '../engines/open-policy.ts';
import { findBubblewrap } from '../processes/bubblewrap.ts';
import { baseURLOf } from '../settings/check-settings.ts';
import { APIS, type ApiName, BASE_MODEL } from '../settings/settings.ts';
import { saying } from './output/print.ts';
import { asCalled, count } from './output/text.ts';

type Finding = readonly [level: 'ok' | 'note' | 'problem', found: string, todo?: string | undefined];

/** Bytes: below the first, a long run may fill the disk or the memory; below the second, none can start. */
const LITTLE = 2e9;
const TOO_LITTLE = 1e8;
const HEALTH_MS = 3_000;
const COLOURS = { ok: 'green', note: 'yellow', problem: 'red' } as const;

export async function doctorCommand({ json }: { readonly json: boolean }): Promise<number> {
  const checks = { ...CHECKS, ...packages() };
  const found = await Promise.all(Object.entries(checks).map(async ([name, check]) => [name, ...(await check())] as const));
  const findings = found.map(([name, level, what, todo]) => ({ name, level, found: what, todo }));
  const ok = findings.every(({ level }) => level !== 'problem');
  const lines = findings.flatMap(({ name, level, found: what, todo }) => [
    `${styleText(COLOURS[level], level.padEnd(8))} ${name.padEnd(20)} ${printableLine(what)}`,
    ...(todo === undefined ? [] : [`${' '.repeat(30)}${asCalled(printableLine(todo))}`]),
  ]);
  const verdict = ok ? 'Training can run here.' : 'Training cannot run here before the problems are solved.';
  saying(json)([...lines, verdict], { type: 'doctor', ok, findings });
  return ok ? 0 : 1;
}

const CHECKS: Readonly<Record<string, () => Finding | Promise<Finding>>> = {
  node: () => ['ok', process.versions.node],
  system: () => {
    const found = `${process.platform} ${process.arch}, ${count(availableParallelism(), 'core')}`;
    const untried = 'Trainyard has not been run on this system: training and evaluating should work; isolation needs Linux';
    return process.platform === 'linux' ? ['ok', found] : ['note', found, untried];
  },
  kernels: () => {
    if (!isRunnable('plain')) return ['problem', 'this Node runs no WebAssembly with SIMD', 'use another build of Node'];
    const { variant, wide } = compileKernels(bestVariant());
    const slower = variant === 'plain' ? '; slower than relaxed SIMD, which this Node lacks' : '';
    return ['ok', `${variant} SIMD, ${wide ? 256 : 128}-bit vectors${slower}`];
  },
  memory: () => {
    const free = process.availableMemory();
    const todo = 'the base policy fits; a larger model may not: close other programs, or lower --context';
    return free < LITTLE ? ['note', `${sizeText(free)} free`, todo] : ['ok', `${sizeText(free)} free`];
  },
  sandbox: () => {
    try {
      const { path, hasProc } = findBubblewrap();
      return ['ok', `${path} works${hasProc ? '' : '; /proc is empty in it, which programs that read it notice'}`];
    } catch (thrown) {
      const without = 'isolated rollouts (--isolation process) and graders that run code refuse to start';
      return ['note', `${messageOf(thrown)}; ${without}`, (thrown as TrainyardError).hint];
    }
  },
  disk: () => disk('.', 'problem'),
  'model cache': () => disk(hubCache(), 'note'),
  models: () => {
    if (!existsSync(join(BASE_MODEL, 'model.safetensors')))
      return ['problem', 'the base policy is missing from the package', 'install trainyard again'];
    const cached = (tried(() => readdirSync(hubCache())) ?? []).filter((name) => name.startsWith('models--'));
    const names = cached.map((name) => name.slice('models--'.length).replace('--', '/'));
    return [
      'ok',
      ['the base policy', ...names].join(', '),
      cached[0] ? undefined : 'for real models: trainyard model get <name>',
    ];
  },
  tinker: async () => {
    const base = baseURLOf('tinker', {});
    if (base === undefined) return ['ok', 'not used: TINKER_BASE_URL is not set'];
    const url = `${base.replace(/\/+$/, '')}/api/v1/healthz`;
    const answer = await fetch(url, { signal: AbortSignal.timeout(HEALTH_MS) }).catch(() => undefined);
    if (answer?.ok) return ['ok', `${hostOf(base)} answers`];
    const how = answer === undefined ? 'does not answer' : `answers ${answer.status}`;
    return ['note', `${hostOf(base)} ${how}`, 'check TINKER_BASE_URL'];
  },
  openai: () => api('openai'),
  anthropic: () => api('anthropic'),
};

/** Of the nearest folder that exists. `worst`: if nothing can be written there. */
function disk(path: string, worst: 'problem' | 'note'): Finding {
  let folder = resolve(path);
  while (!existsSync(folder)) folder = dirname(folder);
  const isWritable = tried(() => accessSync(folder, constants.W_OK) ?? true) ?? false;
  if (!isWritable) return [worst, `${folder} cannot be written`, 'go to a folder that can be written'];
  const { bavail, bsize } = statfsSync(folder);
  const found = `${sizeText(bavail * bsize)} free in ${folder}`;
  if (bavail * bsize >= LITTLE) return ['ok', found];
  return [bavail * bsize < TOO_LITTLE ? worst : 'note', found, 'make room: runs keep rollouts and checkpoints'];
}

async function api(name: ApiName): Promise<Finding> {
  const { urlEnv, keyEnv } = APIS[name];
  const base = baseURLOf(name, {});
  if (base === undefined) return ['ok', `not used: neither ${urlEnv} nor ${keyEnv} is set`];
  const offered = await modelsAt(base, name, process.env[keyEnv] ?? '');
  if (offered === undefined) return ['note', `${hostOf(base)} cannot be reached`, `check ${urlEnv} and the network`];
  if (offered.length > 0) return ['ok', `${hostOf(base)} offers ${count(offered.length, 'model')}`];
  return ['note', `${hostOf(base)} answers, but lists no models`, `check ${keyEnv} and ${urlEnv}`];
}

/** The rest of an address may hold a password. */
function hostOf(url: string): string {
  return tried(() => new URL(url).host) || 'the address';
}

/** The optional peers, as this folder's programs find them. */
function packages(): typeof CHECKS {
  type Manifest = { readonly version: string; readonly peerDependencies?: object };
  const manifestIn = (folder: string): Manifest | undefined =>
    tried(() => JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as Manifest);
  const versionOf = (name: string, folder = resolve('.')): string =>
    manifestIn(join(folder, 'node_modules', name))?.version ??
    (folder === dirname(folder) ? 'not installed; optional' : versionOf(name, dirname(folder)));
  const { peerDependencies = {} } = manifestIn(resolve(import.meta.dirname, '../..')) ?? {};
  return Object.fromEntries(Object.keys(peerDependencies).map((name) => [name, () => ['ok', versionOf(name)]]));
}
