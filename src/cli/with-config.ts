/**
 * What the config file says, under what the flags say: flags win over the named run (`--use`), that over the file's other settings, those over
 * defaults. A resumed run, and one from the rollouts of another, take nothing from a config: they have settings already. `--print-config` shows each setting and where it comes from.
 */
import { existsSync } from 'node:fs';
import { printableLine } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import { evaluationSettings, SETTINGS_OF, trainSettings } from '../settings/check-settings.ts';
import type { ConfigSettings } from '../settings/config.ts';
import { type ConfigFile, FLAG_OF, findConfig, readConfig } from '../settings/config-file.ts';
import { APIS, isApi, usualRun } from '../settings/settings.ts';
import { withoutPassword } from '../store/open.ts';
import { type ConfiguredVerb, withLimits } from './verbs.ts';

type Values = Readonly<Record<string, unknown>>;
/** Values by the names of flags, and where each comes from. */
type Sourced = Map<string, { readonly value: unknown; readonly from: string }>;

/** What commands take of a config: the settings of train or eval, without these. */
const VERBS = {
  train: { of: 'train', without: [] },
  eval: { of: 'eval', without: ['trained', 'loraAlpha'] },
  try: { of: 'eval', without: ['trained', 'loraAlpha', 'n', 'rows', 'run', 'store'] },
  preflight: { of: 'train', without: ['split', 'run', 'store'] },
} as const satisfies Readonly<Record<ConfiguredVerb, { readonly of: 'train' | 'eval'; readonly without: readonly string[] }>>;
const WITHOUT_PROBE = ['entry', 'flow', 'flows', 'minTasks', 'tasks', 'heldOut'];
/** Settings that mean nothing at another engine. */
const OF_ENGINE = ['engine', 'model', 'baseUrl', 'baseModel', 'apiKeyEnv', 'context', 'trained', 'loraRank', 'loraAlpha'];

/** The entry and flags of a command with its config's settings. Undefined if they were to be printed, which is done. */
export async function withConfig(
  verb: ConfiguredVerb,
  entry: string | undefined,
  { config, use, printConfig, ...flags }: Values,
): Promise<{ readonly entry: string | undefined; readonly flags: Values } | undefined> {
  if ((flags['resume'] ?? flags['from']) !== undefined) {
    if (typeof config !== 'string' && use === undefined && !printConfig) return { entry, flags };
    const hint = 'the settings are those of the run, in its run.json; flags change them: leave the others out';
    const beside = flags['resume'] === undefined ? '--from' : '--resume';
    throw new TrainyardError('USAGE', `found --config, --use or --print-config beside ${beside}`, { hint });
  }
  const path = config === false ? undefined : ((config as string | undefined) ?? findConfig());
  const file = path === undefined ? undefined : await readConfig(path);
  for (const warning of file?.warnings ?? []) process.stderr.write(`warning: ${printableLine(`${path}: ${warning}`)}\n`);
  for (const [name, value] of Object.entries(file?.env ?? {})) process.env[name] ??= value;
  const layers: Record<string, Values> = {};
  if (file !== undefined) layers[file.path] = ofVerb(verb, file.settings, flags);
  if (use !== undefined) layers[`${path}: runs.${use}`] = ofVerb(verb, runNamed(String(use), file), flags);
  const merged = layered({ ...layers, flag: { ...flags, ...defined({ entry }) } });
  // A rank is an adapter's to train, and otherwise only what a Tinker server is told.
  if (VERBS[verb].of === 'eval' && merged.get('engine')?.value !== 'tinker' && flags['loraRank'] === undefined)
    merged.delete('loraRank');
  const { entry: named, ...values } = Object.fromEntries([...merged].map(([name, { value }]) => [name, value]));
  const settled = { entry: named as string | undefined, flags: values };
  return printConfig ? void print(verb, settled, merged, { config: path ?? null, use: use ?? null }) : settled;
}

function runNamed(name: string, file: ConfigFile | undefined): ConfigSettings {
  if (file !== undefined && Object.hasOwn(file.runs, name)) return file.runs[name]!;
  const there = Object.keys(file?.runs ?? {}).join(', ') || 'none';
  const where = file === undefined ? 'there is no config file' : `${file.path} has ${there}`;
  throw new TrainyardError('USAGE', `--use: expected the name of a run, found ${JSON.stringify(name)}; ${where}`);
}

/** What the command has of the settings, by the names of its flags. */
function ofVerb(verb: ConfiguredVerb, settings: ConfigSettings, { probe }: Values): Values {
  const without: readonly string[] = VERBS[verb].without;
  const taken = verb === 'preflight' && !probe ? WITHOUT_PROBE : SETTINGS_OF[VERBS[verb].of];
  const own = Object.entries(settings).filter(([name]) => taken.includes(name) && !without.includes(name));
  const { limits = {}, graderDeadlineMs, baseURL, heldOut, ...rest } = Object.fromEntries(own) as ConfigSettings;
  const seconds = (ms: number | undefined): number | undefined => ms && ms / 1000;
  return defined({
    ...rest,
    turns: limits.turns,
    rolloutTokens: limits.tokens,
    deadline: seconds(limits.deadlineMs),
    graderDeadline: seconds(graderDeadlineMs),
    baseUrl: baseURL,
    [verb === 'try' ? 'tasks' : 'heldOut']: heldOut,
  });
}

/** Later layers win, and take away what cannot stand beside them. */
function layered(layers: Readonly<Record<string, Values>>): Sourced {
  const merged: Sourced = new Map();
  for (const [from, values] of Object.entries(layers)) {
    const { engine, model, checkpoint, heldOut, split } = values;
    const below = merged.get('engine')?.value ?? 'embedded';
    const isLocal = checkpoint !== undefined || (isApi(below) && typeof model === 'string' && existsSync(model));
    if (isLocal || (engine !== undefined && engine !== below)) for (const name of OF_ENGINE) merged.delete(name);
    if (heldOut !== undefined) merged.delete('split');
    if (split !== undefined) merged.delete('heldOut');
    for (const [name, value] of Object.entries(values)) merged.set(name, { value, from });
  }
  return merged;
}

function print(
  verb: ConfiguredVerb,
  { entry, flags }: { readonly entry: string | undefined; readonly flags: Values },
  merged: Sourced,
  origin: object,
): void {
  const { of } = VERBS[verb];
  const { checkpoint, tasks, json, ...given }: Values = withLimits(flags);
  const model = checkpoint ?? given['model'];
  const { temperature = 1, run = usualRun(entry ?? '', 'eval-') } = given;
  const own = {
    ...{ train: { tasks }, preflight: { tasks }, eval: { run }, try: { heldOut: tasks, temperature } }[verb],
    model,
    entry,
  };
  const request = Object.entries({ ...given, ...own }).filter(([name]) => SETTINGS_OF[of].includes(name));
  const settings: Values = (of === 'train' ? trainSettings : evaluationSettings)(defined(Object.fromEntries(request)) as never);
  const rows = Object.entries({ ...settings, ...defined({ model }) }).flatMap(([group, all]) => {
    const isGroup = group === 'limits' || group === 'adam';
    const each: [string, unknown][] = isGroup
      ? Object.entries(all as object).map(([name, value]) => [`${group}.${name}`, value])
      : [[group, all]];
    return each.map(([name, value]) => ({
      name,
      value: shown(name === 'store' ? value && withoutPassword(String(value)) : value),
      from: sourceOf(name, settings, merged, verb),
    }));
  });
  const sourced = Object.fromEntries(rows.map(({ name, ...row }) => [name, row]));
  const line = ({ name, value, from }: (typeof rows)[number]): string =>
    `${name.padEnd(22)} ${String(value ?? '-').padEnd(28)} ${from}`;
  console.log(
    json ? JSON.stringify({ type: 'config', verb, ...origin, settings: sourced }) : rows.map(line).map(printableLine).join('\n'),
  );
}

const shown = (value: unknown): unknown => (value instanceof Object && !isNames(value) ? 'given as values' : (value ?? null));
const isNames = (value: object): boolean => Array.isArray(value) && value.every((one) => typeof one === 'string');

function sourceOf(name: string, { engine, baseURL, apiKeyEnv }: Values, merged: Sourced, verb: ConfiguredVerb): string {
  const flag = name === 'heldOut' && verb === 'try' ? 'tasks' : (FLAG_OF[name] ?? name);
  const found = merged.get(flag) ?? (name === 'model' ? merged.get('checkpoint') : undefined);
  if (found !== undefined || name !== 'baseURL' || baseURL === undefined) return found?.from ?? 'default';
  const { urlEnv, keyEnv } = isApi(engine) ? APIS[engine] : { urlEnv: 'TINKER_BASE_URL', keyEnv: '' };
  return `environment: ${process.env[urlEnv] ? urlEnv : (apiKeyEnv ?? keyEnv)}`;
}
