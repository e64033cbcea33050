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
import { kindOf } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { isObject } from '../core/json.ts';
import { importEntry } from '../rollout/discovery.ts';
import type { ConfigSettings } from './config.ts';
import { faultsIn, rowsOf } from './setting-rows.ts';
import { shortPath } from './settings.ts';

const NAMES = ['trainyard.config.ts', 'trainyard.config.mts', 'trainyard.config.js', 'trainyard.config.mjs', 'trainyard.toml'];
/** For a module that awaits something. */
const WAIT_MS = 30_000;
const MOST_TOML = 1_000_000;
const NO_SECRETS = "secrets do not belong in a config file; name the variable that holds it: apiKeyEnv: 'OPENAI_API_KEY'";
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

const NOTHING: RawConfig = { config: {}, places: {}, problems: [], env: {}, warnings: [] };

export function findConfig(folder = '.'): string | undefined {
  const found = NAMES.map((name) => join(folder, name)).filter((path) => existsSync(path));
  if (found.length < 2) return found[0];
  throw new TrainyardError(
    'USAGE',
    `expected one config file, found ${found.join(' and ')}`,
    'remove one, or name the one you mean with --config',
  );
}

export async function readConfig(path: string, waitMs = WAIT_MS): Promise<ConfigFile> {
  const found = await stat(path).catch(() => undefined);
  if (!found?.isFile()) throw new TrainyardError('FILE_NOT_FOUND', `no config file at ${path}`, 'see --config');
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
    const hint = 'trainyard help cli says what a config file holds, trainyard help settings lists every setting';
    throw new TrainyardError('USAGE', `${path}: ${all.join('; ')}`, hint);
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
    return new TrainyardError('USAGE', `${path} was not loaded within ${waitMs / 1000} s`, hint);
  });
  const url = pathToFileURL(await realpath(path)).href;
  const exported = await orAborted(importEntry(url, path), limit.signal);
  const config: unknown = await orAborted(Promise.resolve(exported['default']), limit.signal);
  if (isObject(config)) return { ...NOTHING, config };
  const what = 'default' in exported ? `a default export that is ${kindOf(config)}` : 'no default export';
  throw new TrainyardError(
    'USAGE',
    `${path}: expected an object of settings, found ${what}`,
    'write export default defineConfig({ … }), with defineConfig of trainyard',
  );
}

async function readToml(path: string): Promise<RawConfig> {
  const text = await readFile(path, 'utf8');
  if (text.length > MOST_TOML) throw new TrainyardError('USAGE', `${path}: expected at most ${MOST_TOML} characters, found more`);
  const { parse, TomlError } = await import('smol-toml');
  const { isOsmosis, fromOsmosis } = await import('./osmosis-toml.ts');
  try {
    const config = parse(text);
    return isOsmosis(config) ? fromOsmosis(config, dirname(path)) : { ...NOTHING, config };
  } catch (thrown) {
    if (!(thrown instanceof TomlError)) throw thrown;
    // Its other lines quote the file, which may hold a secret.
    throw new TrainyardError('USAGE', `${path}:${thrown.line}:${thrown.column}: ${thrown.message.split('\n', 1)[0]}`);
  }
}

function problemsIn(settings: unknown, place: string, places: Readonly<Record<string, string>> = {}): readonly string[] {
  if (!isObject(settings)) return [`${place}: expected an object of settings, found ${kindOf(settings)}`];
  const at = (name: string): string => (Object.hasOwn(places, name) ? places[name]! : place === '' ? name : `${place}.${name}`);
  return faultsIn(settings).map(({ name, message }) => `${at(name)}: ${SECRET.test(name) ? NO_SECRETS : message}`);
}

/** With paths relative to the working directory instead of the config file. A model that is no path there is a name. */
function located(settings: ConfigSettings, folder: string): ConfigSettings {
  const at = (path: string): string => shortPath(resolve(folder, path));
  const isPath = new Set(rowsOf().flatMap(({ name, kind }) => (kind.isPath ? [name] : [])));
  const paths = Object.entries(settings).flatMap(([name, value]) =>
    isPath.has(name) && typeof value === 'string' ? [[name, at(value)] as const] : [],
  );
  const { model } = settings;
  const isFolder = model !== undefined && (/^\.{1,2}\//.test(model) || isAbsolute(model) || existsSync(resolve(folder, model)));
  return { ...settings, ...Object.fromEntries(paths), ...(isFolder && { model: at(model) }) };
}
