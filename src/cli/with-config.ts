/**
 * What the config file says, under what the flags say: flags win over the named run (`--use`), that over the file's other settings, those over
 * defaults. A resumed run, and one from the rollouts of another, take nothing from a config: they have settings already. `--print-config` shows each setting and where it comes from.
 */
import { existsSync } from 'node:fs';
import { printableLine } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import { evaluationSettings, trainSettings } from '../settings/check-settings.ts';
import type { ConfigSettings } from '../settings/config.ts';
import { type ConfigFile, findConfig, readConfig } from '../settings/config-file.ts';
import { flat, isChecked, nested, rowsOf } from '../settings/setting-rows.ts';
import { APIS, isApi, usualRun } from '../settings/settings.ts';
import { withoutPassword } from '../store/url.ts';
import type { ConfiguredVerb } from './verbs.ts';

type Values = Readonly<Record<string, unknown>>;
/** Values by the names of settings and of other flags, and where each comes from. */
type Sourced = Map<string, { readonly value: unknown; readonly from: string }>;

/** Settings that mean nothing at another engine. */
const OF_ENGINE = rowsOf().flatMap(({ name, section }) => (section === 'Policy' ? [name] : []));

export interface Configured {
  readonly entry: string | undefined;
  readonly flags: Values;
}

/** The entry and flags of a command with its config's settings; `given` has settings by their names. Undefined if they were to be printed, which is done. */
export async function withConfig(
  verb: ConfiguredVerb,
  entry: string | undefined,
  { config, use, printConfig, ...given }: Values,
): Promise<Configured | undefined> {
  if ((given['resume'] ?? given['from']) !== undefined) {
    if (typeof config !== 'string' && use === undefined && !printConfig) return { entry, flags: nested(Object.entries(given)) };
    const hint = 'the settings are those of the run, in its run.json; flags change them: leave the others out';
    const beside = given['resume'] === undefined ? '--from' : '--resume';
    throw new TrainyardError('USAGE', `found --config, --use or --print-config beside ${beside}`, hint);
  }
  const path = config === false ? undefined : ((config as string | undefined) ?? findConfig());
  const file = path === undefined ? undefined : await readConfig(path);
  for (const warning of file?.warnings ?? []) process.stderr.write(`warning: ${printableLine(`${path}: ${warning}`)}\n`);
  for (const [name, value] of Object.entries(file?.env ?? {})) process.env[name] ??= value;
  const layers: Record<string, Values> = {};
  if (file !== undefined) layers[file.path] = ofVerb(verb, file.settings, given);
  if (use !== undefined) layers[`${path}: runs.${use}`] = ofVerb(verb, runNamed(String(use), file), given);
  const merged = layered({ ...layers, flag: { ...given, ...defined({ entry }) } });
  // A rank is an adapter's to train, and otherwise only what a Tinker server is told.
  const isMeasured = verb === 'eval' || verb === 'try';
  if (isMeasured && merged.get('engine')?.value !== 'tinker' && given['loraRank'] === undefined) merged.delete('loraRank');
  const { entry: named, ...values } = nested([...merged].map(([name, { value }]) => [name, value]));
  const configured = { entry: named as string | undefined, flags: values };
  return printConfig ? void print(verb, configured, merged, { config: path ?? null, use: use ?? null }) : configured;
}

function runNamed(name: string, file: ConfigFile | undefined): ConfigSettings {
  if (file !== undefined && Object.hasOwn(file.runs, name)) return file.runs[name]!;
  const there = Object.keys(file?.runs ?? {}).join(', ') || 'none';
  const where = file === undefined ? 'there is no config file' : `${file.path} has ${there}`;
  throw new TrainyardError('USAGE', `--use: expected the name of a run, found ${JSON.stringify(name)}; ${where}`);
}

/** What the command has of the settings. */
function ofVerb(verb: ConfiguredVerb, settings: ConfigSettings, { probe }: Values): Values {
  const rows = rowsOf(verb).filter((row) => verb !== 'preflight' || probe || isChecked(row.name));
  const names = rows.map(({ name }) => name);
  return defined(Object.fromEntries(flat(settings).filter(([name]) => names.includes(name))));
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

function print(verb: ConfiguredVerb, { entry, flags }: Configured, merged: Sourced, origin: object): void {
  const trains = verb === 'train' || verb === 'preflight';
  const { checkpoint, json, ...given } = flags;
  const model = checkpoint ?? given['model'];
  const { temperature = 1, run = usualRun(entry ?? '', 'eval-') } = given;
  const own = { model, entry, ...(verb === 'eval' && { run }), ...(verb === 'try' && { temperature }) };
  const known = rowsOf(trains ? 'train' : 'eval').map(({ name }) => name);
  const request = nested(flat(defined({ ...given, ...own })).filter(([name]) => known.includes(name)));
  const settings: Values = (trains ? trainSettings : evaluationSettings)(request as never);
  const rows = flat({ ...settings, ...defined({ model }) }).map(([name, value]) => ({
    name,
    value: shown(name === 'store' ? value && withoutPassword(String(value)) : value),
    from: sourceOf(name, settings, merged),
  }));
  const sourced = Object.fromEntries(rows.map(({ name, ...row }) => [name, row]));
  const line = ({ name, value, from }: (typeof rows)[number]): string =>
    `${name.padEnd(22)} ${String(value ?? '-').padEnd(28)} ${from}`;
  console.log(
    json ? JSON.stringify({ type: 'config', verb, ...origin, settings: sourced }) : rows.map(line).map(printableLine).join('\n'),
  );
}

const shown = (value: unknown): unknown => (value instanceof Object && !isNames(value) ? 'given as values' : (value ?? null));
const isNames = (value: object): boolean => Array.isArray(value) && value.every((one) => typeof one === 'string');

function sourceOf(name: string, { engine, baseURL, apiKeyEnv }: Values, merged: Sourced): string {
  const found = merged.get(name) ?? (name === 'model' ? merged.get('checkpoint') : undefined);
  if (found !== undefined || name !== 'baseURL' || baseURL === undefined) return found?.from ?? 'default';
  const { urlEnv, keyEnv } = isApi(engine) ? APIS[engine] : { urlEnv: 'TINKER_BASE_URL', keyEnv: '' };
  return `environment: ${process.env[urlEnv] ? urlEnv : (apiKeyEnv ?? keyEnv)}`;
}
