/**
 * The TOML files of Osmosis, for training and for evaluations, as our settings. Keys without a counterpart here are warned about; keys that
 * Osmosis does not know, or knows in another section, are problems. docs/coming-from/osmosis.md has the table.
 */
import { existsSync } from 'node:fs';
import { isAbsolute, join, normalize } from 'node:path';
import { kindOf } from '../core/describe.ts';
import { isObject } from '../core/json.ts';
import type { RawConfig } from './config-file.ts';
import { nested } from './setting-rows.ts';

const TIMEOUTS = { agent_workflow_timeout_s: 'limits.deadlineMs', grader_timeout_s: 'graderDeadlineMs' };
/** What a key is called here. */
const SECTIONS: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  experiment: { rollout: 'rollout', entrypoint: 'entry', model_path: 'model', dataset: 'tasks' },
  training: {
    lr: 'learningRate',
    n_samples_per_prompt: 'group',
    rollout_batch_size: 'groupsPerStep',
    max_response_length: 'limits.tokens',
    ...TIMEOUTS,
  },
  sampling: { rollout_temperature: 'temperature' },
  checkpoints: { eval_interval: 'evalEvery', checkpoint_save_freq: 'checkpointEvery' },
  evaluation: { limit: 'rows', n: 'n', batch_size: 'concurrency', ...TIMEOUTS },
  advanced: {},
  env: {},
  secrets: { required: 'secrets' },
};
const UNUSED: Readonly<Record<string, string>> = {
  'experiment.branch': 'the code is what lies here, check the branch out',
  'experiment.commit_sha': 'the code is what lies here, check the commit out',
  'training.total_epochs': 'a run is as long as the setting steps says',
  'training.max_prompt_length': 'a prompt may be as long as the context allows',
  'sampling.rollout_top_p': 'training samples from the whole distribution',
  'evaluation.pass_threshold': 'a reward of 1 or more is a success; scale the rewards in the grader',
};

export function isOsmosis(config: Readonly<Record<string, unknown>>): boolean {
  return Object.keys(SECTIONS).some((name) => name !== 'env' && isObject(config[name]));
}

export function fromOsmosis(file: Readonly<Record<string, unknown>>, folder: string): RawConfig {
  const problems: string[] = [];
  const warnings: string[] = [];
  const found: Record<string, unknown> = {};
  const places: Record<string, string> = {};
  for (const [section, content] of Object.entries(file)) {
    const known = Object.hasOwn(SECTIONS, section) ? SECTIONS[section] : undefined;
    if (known === undefined) problems.push(`${section}: unrecognized section`);
    else if (!isObject(content)) problems.push(`${section}: expected a section, found ${kindOf(content)}`);
    for (const [key, value] of known !== undefined && isObject(content) && section !== 'env' ? Object.entries(content) : []) {
      const place = `${section}.${key}`;
      const setting = section === 'advanced' ? key : new Map(Object.entries(known ?? {})).get(key);
      if (UNUSED[place] !== undefined) warnings.push(`${place} is not used: ${UNUSED[place]}`);
      else if (setting === undefined) problems.push(`${place}: unrecognized key${homeOf(key)}`);
      else {
        found[setting] = key.endsWith('_s') && typeof value === 'number' ? 1000 * value : value;
        places[setting] = place;
      }
    }
  }
  const { rollout, secrets = [], rows, tasks, ...rest } = found;
  const { experiment, env = {}, evaluation } = file;
  if (isObject(experiment) && 'branch' in experiment && 'commit_sha' in experiment)
    problems.push('experiment: expected branch or commit_sha, found both');
  problems.push(...pathProblems({ rollout, entrypoint: rest['entry'] }), ...envProblems(env, secrets));
  // In the rollout's folder of a workspace, which has this file in configs/training or configs/eval.
  const home = join('..', '..', 'rollouts', String(rollout), String(rest['entry']));
  const config = {
    ...nested(Object.entries(rest)),
    ...(existsSync(join(folder, home)) && { entry: home }),
    ...(rows !== undefined && { rows: Number.isSafeInteger(rows) ? `1-${rows}` : rows }),
    // What an evaluation has is what it measures on.
    ...(tasks !== undefined && { [evaluation === undefined ? 'tasks' : 'heldOut']: tasks }),
  };
  return { config, places: { ...places, heldOut: 'experiment.dataset' }, problems, warnings, env: env as RawConfig['env'] };
}

function homeOf(key: string): string {
  const home = Object.keys(SECTIONS).find(
    (name) => Object.hasOwn(SECTIONS[name]!, key) || UNUSED[`${name}.${key}`] !== undefined,
  );
  return home === undefined ? '' : `, it belongs in [${home}]`;
}

function pathProblems(paths: Readonly<Record<string, unknown>>): readonly string[] {
  return Object.entries(paths).flatMap(([name, path = '.']) => {
    const text = typeof path === 'string' ? normalize(path.replaceAll('\\', '/')) : '..';
    const isInside = !isAbsolute(text) && !/^\.\.(?:\/|$)/.test(text);
    const expected = !isInside ? 'a path inside the folder of the rollout' : text.endsWith('.py') && 'TypeScript or JavaScript';
    return expected ? [`experiment.${name}: expected ${expected}`] : [];
  });
}

/** A file that is only read must not set them. */
const REDIRECTS = /^(?:NODE_|LD_|DYLD_|PATH$|HOME$|SHELL$|TMPDIR$|HF_ENDPOINT$)|_(?:BASE_URL|PROXY)$/;

function envProblems(env: unknown, secrets: unknown): readonly string[] {
  const names: readonly unknown[] = Array.isArray(secrets) ? secrets : [secrets];
  const variables = isObject(env) ? Object.entries(env) : [];
  const isText = (name: unknown, form: RegExp): name is string => typeof name === 'string' && form.test(name);
  return [
    ...variables.flatMap(([name, value]) => [
      ...(/^(?!_OSMOSIS_)[A-Z_][A-Z0-9_]*$/.test(name) ? [] : [`env.${name}: expected a name such as MY_VARIABLE`]),
      ...(REDIRECTS.test(name) ? [`env.${name}: it decides which code runs or where keys are sent; set it in the shell`] : []),
      ...(typeof value === 'string' ? [] : [`env.${name}: expected a text, found ${kindOf(value)}`]),
    ]),
    ...names.flatMap((name, i) => {
      if (!isText(name, /^[A-Z][A-Z0-9_]*$/)) return ['secrets.required: expected names of variables such as MY_KEY'];
      if (names.indexOf(name) !== i || variables.some(([one]) => one === name))
        return [`secrets.required: ${name} is there twice, or in [env] too`];
      return process.env[name] ? [] : [`secrets.required: expected ${name} in the environment, found none`];
    }),
  ];
}
