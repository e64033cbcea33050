/**
 * What the config file says, under what the flags say: flags win over the named run (`--use`), that over the file's other settings, those over
 * defaults. A resumed run takes nothing from a config: it has its settings. `--print-config` shows each setting and where it comes from.
 */
import { printableLine } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import { evaluationSettings, SETTINGS_OF, trainSettings } from '../run/check-settings.ts';
import type { ConfigSettings } from '../run/config.ts';
import { type ConfigFile, findConfig, readConfig } from '../run/config-file.ts';
import { APIS, isApi, usualRun } from '../run/settings.ts';
import { withLimits } from './verbs.ts';

export type ConfiguredVerb = 'train' | 'eval' | 'preflight' | 'try';
type Values = Readonly<Record<string, unknown>>;
type Sourced = Map<string, { readonly value: unknown; readonly from: string }>;

/** Settings that mean nothing at another engine. */
const OF_ENGINE = ['model', 'baseUrl', 'baseModel', 'apiKeyEnv', 'context', 'trained', 'loraRank', 'loraAlpha'];
/** A setting of a higher layer takes the place of these below it. */
const INSTEAD: Readonly<Record<string, readonly string[]>> = {
  ...{ split: ['heldOut'], heldOut: ['split'], checkpoint: ['engine', ...OF_ENGINE] },
};
/** Of train and eval, but not for these commands. */
const NOT_OF: Readonly<Record<ConfiguredVerb, readonly string[]>> = {
  ...{
    train: [],
    eval: ['trained', 'loraAlpha'],
    try: ['trained', 'loraAlpha', 'n', 'rows', 'run', 'tasks'],
    preflight: ['split', 'run'],
  },
};
const WITHOUT_PROBE = ['entry', 'flow', 'flows', 'minTasks', 'tasks', 'heldOut'];

/** The entry and flags of a command with its config's settings. Undefined if they were to be printed, which is done. */
export async function withConfig(
  verb: ConfiguredVerb,
  entry: string | undefined,
  { config, use, printConfig, ...flags }: Values,
): Promise<{ readonly entry: string | undefined; readonly flags: Values } | undefined> {
  if (flags['resume'] !== undefined) {
    if (typeof config !== 'string' && use === undefined && !printConfig) return { entry, flags };
    const hint = 'leave them out: a run goes on with the settings it began with, which are in its run.json';
    throw new TrainyardError('USAGE', 'found --config, --use or --print-config beside --resume', { hint });
  }
  const path = config === false ? undefined : ((config as string | undefined) ?? findConfig());
  const file = path === undefined ? undefined : await readConfig(path);
  for (const warning of file?.warnings ?? []) process.stderr.write(`warning: ${printableLine(`${path}: ${warning}`)}\n`);
  for (const [name, value] of Object.entries(file?.env ?? {})) process.env[name] ??= value;
  const merged = layered(verb, flags, [
    [file?.path ?? '', file?.settings ?? {}],
    [`runs.${use} of ${file?.path}`, use === undefined ? {} : runNamed(String(use), file)],
    ['flag', { ...flags, ...defined({ entry }) }],
  ]);
  const { entry: named, ...values } = Object.fromEntries([...merged].map(([name, { value }]) => [name, value]));
  if (printConfig)
    return void print(verb, values, named as string | undefined, merged, { config: path ?? null, use: use ?? null });
  return { entry: named as string | undefined, flags: values };
}

function runNamed(name: string, file: ConfigFile | undefined): ConfigSettings {
  const run = file !== undefined && Object.hasOwn(file.runs, name) ? file.runs[name] : undefined;
  if (run !== undefined) return run;
  const there = Object.keys(file?.runs ?? {}).join(', ') || 'none';
  throw new TrainyardError(
    'USAGE',
    `--use: found no run ${JSON.stringify(name)}; ${file?.path ?? 'without a config file'}: ${there}`,
    {
      hint: 'name one of the runs of the config file',
    },
  );
}

/** In the names of flags, which commands take; the last layer is the flags themselves. */
function layered(verb: ConfiguredVerb, flags: Values, layers: readonly (readonly [string, object])[]): Sourced {
  const merged: Sourced = new Map();
  const isTraining = verb === 'train' || verb === 'preflight';
  const own = SETTINGS_OF[isTraining ? 'train' : 'eval'].filter((name) => !NOT_OF[verb].includes(name));
  const taken = verb === 'preflight' && !flags['probe'] ? WITHOUT_PROBE : own;
  for (const [i, [from, settings]] of layers.entries()) {
    const isFlags = i === layers.length - 1;
    const values: Values = isFlags
      ? { ...settings }
      : asFlags(Object.fromEntries(Object.entries(settings).filter(([name]) => taken.includes(name))), verb);
    const engine = values['engine'];
    if (engine !== undefined && engine !== (merged.get('engine')?.value ?? 'embedded'))
      for (const name of OF_ENGINE) merged.delete(name);
    for (const name of Object.keys(values)) for (const other of INSTEAD[name] ?? []) merged.delete(other);
    for (const [name, value] of Object.entries(values)) if (value !== undefined) merged.set(name, { value, from });
  }
  const isRankless = !isTraining && merged.get('engine')?.value !== 'tinker' && merged.get('loraRank')?.from !== 'flag';
  if (isRankless) merged.delete('loraRank');
  return merged;
}

function asFlags(settings: Values, verb: ConfiguredVerb): Values {
  const { limits = {}, graderDeadlineMs, baseURL, heldOut, ...rest } = settings as ConfigSettings;
  const seconds = (ms: number | undefined): number | undefined => ms && ms / 1000;
  return defined({
    ...{ ...rest, turns: limits.turns, rolloutTokens: limits.tokens, deadline: seconds(limits.deadlineMs) },
    ...{ graderDeadline: seconds(graderDeadlineMs), baseUrl: baseURL, [verb === 'try' ? 'tasks' : 'heldOut']: heldOut },
  });
}

const FLAG_OF: Readonly<Record<string, string>> = {
  ...{ 'limits.turns': 'turns', 'limits.tokens': 'rolloutTokens', 'limits.deadlineMs': 'deadline' },
  ...{ graderDeadlineMs: 'graderDeadline', baseURL: 'baseUrl' },
};

function print(verb: ConfiguredVerb, values: Values, entry: string | undefined, merged: Sourced, origin: object): void {
  const isTraining = verb === 'train' || verb === 'preflight';
  const { checkpoint, tasks, ...given } = withLimits(values) as Values;
  const model = checkpoint ?? given['model'];
  const extra = verb === 'try' ? { heldOut: tasks, temperature: given['temperature'] ?? 1 } : { tasks };
  const run = verb === 'eval' ? (given['run'] ?? usualRun(entry ?? '', 'eval-')) : given['run'];
  const names = SETTINGS_OF[isTraining ? 'train' : 'eval'];
  const request = Object.entries({ ...given, ...extra, run, model, entry }).filter(
    ([name, value]) => names.includes(name) && value !== undefined,
  );
  const settings: Values = (isTraining ? trainSettings : evaluationSettings)(Object.fromEntries(request) as never);
  const flat = Object.entries({ ...settings, ...defined({ model }) }).flatMap(([name, value]): [string, unknown][] => {
    const isGroup = name === 'limits' || name === 'adam';
    return isGroup ? Object.entries(value as object).map(([part, one]) => [`${name}.${part}`, one]) : [[name, value]];
  });
  const rows = flat.map(([name, value]) => ({
    name,
    value: shownValue(value),
    from: sourceOf(name, value, settings, merged, verb),
  }));
  if (values['json']) {
    const sourced = Object.fromEntries(rows.map(({ name, ...row }) => [name, row]));
    console.log(JSON.stringify({ type: 'config', verb, ...origin, settings: sourced }));
    return;
  }
  const text = (value: unknown): string => (value === null ? '-' : typeof value === 'string' ? value : JSON.stringify(value));
  const wide = Math.max(...rows.map(({ value }) => Math.min(text(value).length, 40)));
  for (const { name, value, from } of rows) console.log(printableLine(`${name.padEnd(22)} ${text(value).padEnd(wide)}  ${from}`));
}

const shownValue = (value: unknown): unknown =>
  typeof value === 'object' && !Array.isArray(value) ? 'tasks given as values' : (value ?? null);

function sourceOf(name: string, value: unknown, { engine, apiKeyEnv }: Values, merged: Sourced, verb: ConfiguredVerb): string {
  const flag = name === 'heldOut' && verb === 'try' ? 'tasks' : (FLAG_OF[name] ?? name);
  const found = merged.get(name === 'model' && merged.has('checkpoint') ? 'checkpoint' : flag);
  if (found !== undefined) return found.from;
  if (name !== 'baseURL' || value === undefined) return 'default';
  const variable = isApi(engine) ? APIS[engine].urlEnv : 'TINKER_BASE_URL';
  return `environment (${process.env[variable] || !isApi(engine) ? variable : (apiKeyEnv ?? APIS[engine].keyEnv)})`;
}
