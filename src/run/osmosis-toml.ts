/**
 * The TOML files of Osmosis, for training and for evaluations, as our settings. Keys without a counterpart here are warned about; keys that
 * Osmosis does not know, or knows in another section, are problems. docs/guide/11-coming-from-osmosis.md has the table.
 */
import { existsSync } from 'node:fs';
import { dirname, isAbsolute, join, normalize } from 'node:path';
import { kindOf } from '../core/describe.ts';
import { isObject } from '../core/json.ts';
import type { RawConfig } from './config-file.ts';

/** A setting and how its value is made; or, in words, why there is none. */
type Counterpart = readonly [setting: string, factor?: number] | string;

const TIMEOUTS = { agent_workflow_timeout_s: ['deadlineMs', 1000], grader_timeout_s: ['graderDeadlineMs', 1000] } as const;
const SECTIONS: Readonly<Record<string, Readonly<Record<string, Counterpart>>>> = {
  experiment: {
    ...{ rollout: ['rollout'], entrypoint: ['entrypoint'], model_path: ['model'], dataset: ['tasks'] },
    branch: 'the code is what lies here: check the branch out',
    commit_sha: 'the code is what lies here: check the commit out',
  },
  training: {
    ...{ lr: ['learningRate'], n_samples_per_prompt: ['group'], rollout_batch_size: ['groupsPerStep'] },
    total_epochs: 'a run is as long as steps says',
    max_prompt_length: 'a prompt may be as long as the context allows',
    max_response_length: ['tokens'],
    ...TIMEOUTS,
  },
  sampling: { rollout_temperature: ['temperature'], rollout_top_p: 'training samples from the whole distribution' },
  checkpoints: { eval_interval: ['evalEvery'], checkpoint_save_freq: ['checkpointEvery'] },
  evaluation: {
    ...{ limit: ['limit'], n: ['n'], batch_size: ['concurrency'], ...TIMEOUTS },
    pass_threshold: 'a reward of 1 or more is a success; scale the rewards in the grader',
  },
};
const OTHERS = ['advanced', 'env', 'secrets'];
const OF_LIMITS = ['tokens', 'deadlineMs'];

export function isOsmosis(config: object): boolean {
  return [...Object.keys(SECTIONS), 'advanced', 'secrets'].some((name) => isObject((config as Record<string, unknown>)[name]));
}

export function fromOsmosis(file: object, folder: string): RawConfig {
  const [problems, warnings]: [string[], string[]] = [[], []];
  const settings: Record<string, unknown> = {};
  const places: Record<string, string> = {};
  const all = Object.entries(file) as [string, unknown][];
  for (const [section, content] of all) {
    const known = Object.hasOwn(SECTIONS, section) ? SECTIONS[section]! : {};
    if (!Object.hasOwn(SECTIONS, section) && !OTHERS.includes(section)) problems.push(`${section}: unrecognized section`);
    else if (!isObject(content)) problems.push(`${section}: expected a section, found ${kindOf(content)}`);
    else if (section === 'advanced') Object.assign(settings, content);
    for (const [key, value] of isObject(content) && Object.hasOwn(SECTIONS, section) ? Object.entries(content) : []) {
      const counterpart = Object.hasOwn(known, key) ? known[key] : undefined;
      if (counterpart === undefined) problems.push(`${section}.${key}: ${unrecognized(key)}`);
      else if (typeof counterpart === 'string') warnings.push(`${section}.${key} is not used: ${counterpart}`);
      else {
        const [setting, factor] = counterpart;
        settings[setting] = typeof value === 'number' && factor !== undefined ? value * factor : value;
        places[setting] = `${section}.${key}`;
      }
    }
  }
  const sections = file as Readonly<Record<string, Readonly<Record<string, unknown>> | undefined>>;
  const { experiment = {}, env = {}, secrets = {}, evaluation } = sections;
  if (experiment['branch'] !== undefined && experiment['commit_sha'] !== undefined)
    problems.push('experiment: expected branch or commit_sha, found both');
  const { rollout, entrypoint, limit, tokens, deadlineMs, tasks, ...rest } = settings;
  problems.push(...entryProblems(rollout, entrypoint), ...envProblems(env, secrets));
  const config = {
    ...rest,
    ...(typeof entrypoint === 'string' && { entry: entryIn(folder, rollout, entrypoint) }),
    // An evaluation's dataset is what it measures on.
    ...(tasks !== undefined && { [evaluation === undefined ? 'tasks' : 'heldOut']: tasks }),
    ...(limit !== undefined && { rows: Number.isSafeInteger(limit) ? `1-${limit}` : limit }),
    ...(OF_LIMITS.some((name) => name in settings) && {
      limits: { ...(tokens !== undefined && { tokens }), ...(deadlineMs !== undefined && { deadlineMs }) },
    }),
  };
  const place = {
    ...places,
    rows: 'evaluation.limit',
    limits: `${evaluation === undefined ? 'training' : 'evaluation'}`,
    heldOut: 'experiment.dataset',
  };
  const advanced = Object.keys(sections['advanced'] ?? {}).map((name) => [name, `advanced.${name}`]);
  const named = isObject(env) ? (env as Readonly<Record<string, string>>) : {};
  return { config, places: { ...place, ...Object.fromEntries(advanced) }, problems, env: named, warnings };
}

function unrecognized(key: string): string {
  const home = Object.keys(SECTIONS).find((section) => Object.hasOwn(SECTIONS[section] ?? {}, key));
  return home === undefined ? 'unrecognized key' : `unrecognized key, it belongs in [${home}]`;
}

function entryProblems(...paths: readonly unknown[]): readonly string[] {
  return ['rollout', 'entrypoint'].flatMap((name, i) => {
    const path = paths[i];
    if (path === undefined) return [];
    const place = `experiment.${name}`;
    if (typeof path !== 'string' || path === '') return [`${place}: expected a path, found ${kindOf(path)}`];
    if (isAbsolute(path) || /^\.\.(?:[\\/]|$)/.test(normalize(path)))
      return [`${place}: expected a path inside the rollout’s folder`];
    return path.endsWith('.py') ? [`${place}: expected a TypeScript or JavaScript module, found Python`] : [];
  });
}

/** In the rollout's folder of the workspace, if there is one above the file. */
function entryIn(folder: string, rollout: unknown, entrypoint: string): string {
  const up = [folder, dirname(folder), dirname(dirname(folder)), join(folder, '..'), join(folder, '..', '..')];
  const home =
    typeof rollout === 'string' ? up.map((one) => join(one, 'rollouts', rollout)).find((one) => existsSync(one)) : undefined;
  return home === undefined ? entrypoint : join(process.cwd(), home, entrypoint);
}

function envProblems(env: unknown, secrets: unknown): readonly string[] {
  if (!isObject(env) || !isObject(secrets)) return [];
  const { required = [], ...others } = secrets;
  const names = Array.isArray(required) ? (required as readonly unknown[]) : [];
  const isTwice = (name: unknown, i: number): boolean => names.indexOf(name) !== i || Object.hasOwn(env, String(name));
  const missing = names.filter((name) => typeof name === 'string' && !process.env[name]);
  return [
    ...Object.entries(env).flatMap(([name, value]) => {
      if (!/^[A-Z_][A-Z0-9_]*$/.test(name) || name.startsWith('_OSMOSIS_'))
        return [`env.${name}: expected a name such as MY_VARIABLE`];
      return typeof value === 'string' ? [] : [`env.${name}: expected a text, found ${kindOf(value)}`];
    }),
    ...Object.keys(others).map((key) => `secrets.${key}: unrecognized key`),
    ...(Array.isArray(required) ? [] : [`secrets.required: expected a list of names, found ${kindOf(required)}`]),
    ...names.flatMap((name, i) => {
      const isName = typeof name === 'string' && /^[A-Z][A-Z0-9_]*$/.test(name);
      if (!isName) return [`secrets.required: expected names of variables such as MY_KEY, found another at ${i + 1}`];
      return isTwice(name, i) ? [`secrets.required: ${name} is there twice, or in [env] too`] : [];
    }),
    ...(missing.length === 0 ? [] : [`secrets.required: expected in the environment, not found: ${missing.join(', ')}`]),
  ];
}
