/**
 * Finds and reads a config file: `trainyard.config.ts` (or .mts, .js, .mjs), which is code and is run, or `trainyard.toml`, in our names or in
 * those of Osmosis. Reports every problem at once, with its place. Never repeats a value, which may be a secret. Which settings a command takes,
 * and what wins, is the command line's (cli/with-config.ts).
 */
import { existsSync } from 'node:fs';
import { readFile, realpath, stat } from 'node:fs/promises';
import { dirname, extname, isAbsolute, join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { deadlineSignal, orAborted } from '../core/async.ts';
import { kindOf, nearName } from '../core/describe.ts';
import { boundary, TrainyardError } from '../core/errors.ts';
import { isObject } from '../core/json.ts';
import { importEntry } from '../rollout/discovery.ts';
import { configShape } from './check-settings.ts';
import type { ConfigSettings } from './config.ts';
import { shortPath } from './settings.ts';

const NAMES = ['trainyard.config.ts', 'trainyard.config.mts', 'trainyard.config.js', 'trainyard.config.mjs', 'trainyard.toml'];
/** For a module that awaits something. */
const WAIT_MS = 30_000;
const MOST_TOML_BYTES = 2 ** 20;
const PATHS = ['entry', 'tasks', 'heldOut', 'flows', 'run', 'warmStart'] as const;
/** What flags are called whose setting has another name. */
const FLAG_NAMES: Readonly<Record<string, string>> = {
  ...{ turns: 'limits.turns', rolloutTokens: 'limits.tokens', deadline: 'limits.deadlineMs' },
  ...{ graderDeadline: 'graderDeadlineMs', checkpoint: 'model' },
};
const SECRET = /(?:key|secret|token|password|passwd|credentials?)$/i;

export interface ConfigFile {
  readonly path: string;
  readonly settings: ConfigSettings;
  readonly runs: Readonly<Record<string, ConfigSettings>>;
  /** Variables for the command, unless they are set. */
  readonly env: Readonly<Record<string, string>>;
  readonly warnings: readonly string[];
}

/** What a file says, before it is checked. `places`: where a setting was found, if not under its name. */
export interface RawConfig extends Pick<ConfigFile, 'env' | 'warnings'> {
  readonly config: Readonly<Record<string, unknown>>;
  readonly places: Readonly<Record<string, string>>;
  readonly problems: readonly string[];
}

export function findConfig(folder = '.'): string | undefined {
  const found = NAMES.map((name) => join(folder, name)).filter((path) => existsSync(path));
  if (found.length < 2) return found[0];
  throw new TrainyardError('USAGE', `expected one config file, found ${found.join(' and ')}`, {
    hint: 'remove one, or name the one you mean with --config',
  });
}

export async function readConfig(path: string, waitMs = WAIT_MS): Promise<ConfigFile> {
  const found = await stat(path).catch(() => undefined);
  if (!found?.isFile()) throw new TrainyardError('FILE_NOT_FOUND', `no config file at ${path}`, { hint: 'see --config' });
  const { config, places, problems, env, warnings } = await (extname(path) === '.toml'
    ? readToml(path)
    : readModule(path, waitMs));
  const { runs = {}, ...shared } = config;
  const named = isObject(runs) ? Object.entries(runs) : [];
  const all = [
    ...problems,
    ...problemsIn(shared, '', places),
    ...(isObject(runs) ? [] : [`runs: expected settings by the names of runs, found ${kindOf(runs)}`]),
    ...named.flatMap(([name, run]) => problemsIn(run, `runs.${name}`)),
  ];
  if (all.length > 0) {
    const hint = 'docs/reference/config.md says what a config file holds, docs/reference/settings.md lists every setting';
    throw new TrainyardError('USAGE', `${path}: ${all.join('; ')}`, { hint });
  }
  const placed = (settings: unknown): ConfigSettings => located(settings as ConfigSettings, dirname(path));
  return {
    path,
    settings: placed(shared),
    runs: Object.fromEntries(named.map(([name, run]) => [name, placed(run)])),
    env,
    warnings,
  };
}

async function readModule(path: string, waitMs: number): Promise<RawConfig> {
  using limit = deadlineSignal(waitMs, () => {
    const hint = 'a config file that awaits must come to an end; check what it waits for';
    return new TrainyardError('USAGE', `${path} was not loaded within ${waitMs / 1000} s`, { hint });
  });
  const url = pathToFileURL(await realpath(path)).href;
  const exported = await orAborted(importEntry(url, path), limit.signal);
  const config: unknown = await orAborted(Promise.resolve(exported['default']), limit.signal);
  if (isObject(config)) return { config, places: {}, problems: [], env: {}, warnings: [] };
  const what = 'default' in exported ? `a default export that is ${kindOf(config)}` : 'no default export';
  throw new TrainyardError('USAGE', `${path}: expected an object of settings, found ${what}`, {
    hint: 'write export default defineConfig({ … }), with defineConfig of trainyard',
  });
}

async function readToml(path: string): Promise<RawConfig> {
  const { size } = await stat(path);
  if (size > MOST_TOML_BYTES) throw new TrainyardError('USAGE', `${path}: expected at most 1 MiB, found ${size} bytes`);
  const { parse } = await import('smol-toml');
  const text = await readFile(path, 'utf8');
  // The message quotes lines of the file below its first line.
  const config: object = await boundary('USAGE', path, () => {
    try {
      return parse(text);
    } catch (thrown) {
      const { message, line, column } = thrown as Error & { readonly line?: number; readonly column?: number };
      throw new TrainyardError('USAGE', `${path}:${line ?? 1}:${column ?? 1}: ${message.split('\n', 1)[0]}`);
    }
  });
  const { isOsmosis, fromOsmosis } = await import('./osmosis-toml.ts');
  if (isOsmosis(config)) return fromOsmosis(config, dirname(path));
  return { config: config as RawConfig['config'], places: {}, problems: [], env: {}, warnings: [] };
}

function problemsIn(settings: unknown, place: string, places: Readonly<Record<string, string>> = {}): readonly string[] {
  if (!isObject(settings)) return [`${place}: expected an object of settings, found ${kindOf(settings)}`];
  const at = (name: string): string => places[name] ?? (place === '' ? name : `${place}.${name}`);
  return Object.entries(settings).flatMap(([name, value]) => {
    if (!Object.hasOwn(configShape, name)) return [`${at(name)}: ${unknownName(name)}`];
    const { error } = configShape[name as keyof typeof configShape].optional().safeParse(value);
    const isSecretName = name === 'apiKeyEnv' && !/^[A-Za-z_]\w*$/.test(String(value));
    if (isSecretName) return [`${at(name)}: expected the name of an environment variable, found something else`];
    return (error?.issues ?? []).map((issue) => `${[at(name), ...issue.path].join('.')}: ${issue.message}`);
  });
}

function unknownName(name: string): string {
  if (SECRET.test(name))
    return "secrets do not belong in a config file; name the variable that holds it: apiKeyEnv: 'OPENAI_API_KEY'";
  const meant = FLAG_NAMES[name] ?? nearName(name, Object.keys(configShape));
  return `unknown setting${meant === undefined ? '' : `, did you mean ${meant}?`}`;
}

/** With paths relative to the working directory instead of the config file. A model that is no path there is a name. */
function located(settings: ConfigSettings, folder: string): ConfigSettings {
  const at = (path: string): string => shortPath(resolve(folder, path));
  const paths = PATHS.flatMap((name) => (typeof settings[name] === 'string' ? [[name, at(settings[name])] as const] : []));
  const { model } = settings;
  const isPath = model !== undefined && (/^\.{1,2}\//.test(model) || isAbsolute(model) || existsSync(resolve(folder, model)));
  return { ...settings, ...Object.fromEntries(paths), ...(isPath && { model: at(model) }) };
}
