/**
 * What settings may be by name (algorithms, losses, engines), and the paths and commands that they lead to. table.ts has the settings themselves.
 */
import { existsSync, readFileSync } from 'node:fs';
import { basename, dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Planned } from '../core/events.ts';
import { defined } from '../core/json.ts';
import type { Limits, SamplingSettings, StaleRule } from '../core/types.ts';
import type { Entry } from '../rollout/discovery.ts';
import type { HiddenFiles } from '../rollout/runner.ts';

/** Read when it is asked for: sandboxes import this file, and have no package.json. */
export function ownRelease(): string {
  return JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')).version;
}
export const BASE_MODEL = fileURLToPath(new URL('../../models/base', import.meta.url));

export const STALE_NAMES = ['drop', 'weigh', 'keep'] as const satisfies readonly StaleRule['rule'][];
/**
 * With r the reward, and mean and standard deviation over all compared rewards including r: `grpo` (r − mean) / (standard deviation + ε),
 * `dr-grpo` r − mean, `rloo` r − mean of the other rollouts' rewards, `reinforce++` r − mean, which batch.ts then whitens over the batch.
 */
export const ALGORITHMS = ['grpo', 'dr-grpo', 'rloo', 'reinforce++'] as const;
export type Algorithm = (typeof ALGORITHMS)[number];

/**
 * What gets equal weight in a step: every trained token and every reward of a pool, or every rollout, however many samples and rewards by
 * turn it has. The two coincide if each rollout has one reward and one sample, all of the same length.
 */
export const WEIGHTINGS = ['tokens', 'rollouts'] as const;
export type Weighting = (typeof WEIGHTINGS)[number];

/** http://joschu.net/blog/kl-approx.html. With d = lp − ref: k1 = d, k2 = ½·d², k3 = e^−d + d − 1. */
export const KL_ESTIMATORS = ['k1', 'k2', 'k3'] as const;
export type KlEstimator = (typeof KL_ESTIMATORS)[number];

export const LOSS_NAMES = ['ppo', 'importance_sampling', 'cispo', 'gspo', 'decoupled_ppo', 'dro', 'dpo'] as const;
export type LossName = (typeof LOSS_NAMES)[number];
export const IS_LEVELS = ['token', 'sequence'] as const;
export const IS_ACTIONS = ['truncate', 'mask'] as const;
export const ENGINES = ['embedded', 'tinker', 'openai', 'anthropic'] as const;
export type EngineName = (typeof ENGINES)[number];

/** Policies behind an API, where only messages are known: they are measured, never trained. */
export const APIS = {
  openai: { baseURL: 'https://api.openai.com/v1', keyEnv: 'OPENAI_API_KEY', urlEnv: 'OPENAI_BASE_URL' },
  anthropic: { baseURL: 'https://api.anthropic.com', keyEnv: 'ANTHROPIC_API_KEY', urlEnv: 'ANTHROPIC_BASE_URL' },
} as const;
export type ApiName = keyof typeof APIS;

export function isApi(engine: unknown): engine is ApiName {
  return typeof engine === 'string' && Object.hasOwn(APIS, engine);
}

/** A server computes a batch of this many in about the time of one. */
export const TINKER_CONCURRENCY = 256;

/** Of settings that are refused beside losses and penalties they do not belong to, so that "not given" can be told. */
export const DRO_BETA = 0.05;
export const DPO_BETA = 0.1;
export const OVERLONG_FACTOR = 1;

export function usualTasks(entry: string | Entry): string {
  return beside(entry, 'train.jsonl');
}

export function usualHeldOut(entry: string | Entry): string {
  return beside(entry, 'held-out.jsonl');
}

function beside(entry: string | Entry, name: string): string {
  return join(typeof entry === 'string' ? dirname(entry) : '.', name);
}

/** What isolated rollouts of a run must not find: answers, also those of runs that it learns from, and what opens its store. */
export function hiddenFiles(settings: object & { readonly store?: string | undefined }): HiddenFiles {
  const { tasks, heldOut, from, warmStart, run } = settings as Readonly<Record<string, unknown>>;
  return { tasks: [tasks, heldOut, from, warmStart, run], store: settings.store };
}

/** Such as runs/shop-20261115-081703: the entry's folder and the time, with a number appended if that exists. */
export function usualRun(entry: string | Entry, prefix = ''): string {
  return freeRun(`${prefix}${typeof entry === 'string' ? basename(dirname(resolve(entry))) : entry.workflow.name}`);
}

export function freeRun(name: string): string {
  const time = new Date().toISOString().replace(/[-:]/g, '').replace('T', '-').slice(0, 15);
  const path = join('runs', `${name || 'run'}-${time}`);
  let number = 2;
  let free = path;
  while (existsSync(free)) free = `${path}-${number++}`;
  return free;
}

/** For a shell that finds `trainyard`; the CLI adapts it to how it was called (`asCalled`). */
export function resumeCommand(run: string, verb: 'train' | 'eval' = 'train'): string {
  return `trainyard ${verb} --resume ${shellWord(run)}`;
}

export function shellWord(path: string): string {
  return /^[\w@%+=:,./-]+$/.test(path) ? path : `'${path.replaceAll("'", `'\\''`)}'`;
}

/** Relative to the working directory if the path is inside it. */
export function shortPath(path: string): string {
  const near = relative('.', path);
  return near === '' || near.startsWith('..') ? path : near;
}

/** Callers pass the temperature: training samples at its own, held-out evaluation at 0. */
export function samplingAt(temperature: number, { callTokens }: { readonly callTokens: number }): SamplingSettings {
  return { temperature, topP: 1, topK: 0, maxTokens: callTokens };
}

/** Per million tokens, in any currency. */
export type Price = readonly [prompt: number, sampled: number];

/** Undefined without prices. */
export function costOf(price: Price | undefined, promptTokens: number, sampledTokens: number): number | undefined {
  return price && (promptTokens * price[0] + sampledTokens * price[1]) / 1e6;
}

export function plannedFor(rollouts: number, given: { readonly limits: Limits; readonly price: Price | undefined }): Planned {
  const calls = rollouts * given.limits.turns;
  const sampledTokens = rollouts * given.limits.tokens;
  return { rollouts, calls, sampledTokens, ...defined({ cost: costOf(given.price, 0, sampledTokens) }) };
}

export function learningRateAt(
  step: number,
  { steps, warmupSteps, learningRate }: Readonly<Record<'steps' | 'warmupSteps' | 'learningRate', number>>,
): number {
  const warmup = Math.min(1, step / Math.max(1, warmupSteps));
  const decay = 1 - (0.9 * (step - 1)) / Math.max(1, steps - 1);
  return learningRate * warmup * decay;
}
