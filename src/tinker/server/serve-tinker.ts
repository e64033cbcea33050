/**
 * The Tinker API on a model folder: opens the folder that keeps saved weights, for this process alone, and listens.
 */
import { randomBytes } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { openingWith } from '../../core/async.ts';
import { TrainyardError } from '../../core/errors.ts';
import { checkModelFolder } from '../../run/checkpoint.ts';
import { lockFolder } from '../../run/directory.ts';
import type { HttpFailure } from './api-error.ts';
import { listen } from './listener.ts';
import { TinkerServer } from './server.ts';

export interface TinkerServerSettings {
  readonly model: string;
  readonly host: string;
  readonly port: number;
  /** Where none is given, the state folder's own: made up once, so that a server started again is reached with it. Must be given to bind
   * anything but loopback. */
  readonly apiKey: string | undefined;
  /** Folder that saved weights are kept in. */
  readonly state: string;
  readonly threads: number;
}

export interface ServedTinker extends AsyncDisposable {
  readonly origin: string;
  readonly apiKey: string;
  /** What clients name as their base model. */
  readonly baseModel: string;
}

/** Official clients refuse keys that do not begin with it. */
const KEY_PREFIX = 'tml-';
const KEPT_KEY = /^tml-[0-9a-f]{32}$/;

/** Serves until disposed. */
export function serveTinker(
  settings: TinkerServerSettings,
  onFailure: (failure: HttpFailure, path: string) => void,
): Promise<ServedTinker> {
  return openingWith(async (closers) => {
    const { model, host, port, apiKey: chosenKey, state, threads } = settings;
    if (chosenKey !== undefined && !chosenKey.startsWith(KEY_PREFIX)) {
      throw new TrainyardError('USAGE', `the key does not begin with ${KEY_PREFIX}`, {
        hint: `clients want keys such as ${newKey()}`,
      });
    }
    await checkModelFolder(model);
    closers.add(await lockFolder(state, '--state'));
    const key = chosenKey ?? (await keyOf(resolve(state)));
    const server = closers.add(await TinkerServer.open({ model, state: resolve(state), key, threads, onFailure }));
    const { origin } = closers.add(await listen(server, { host, port, chosenKey }));
    return { origin, apiKey: key, baseModel: server.modelName, [Symbol.asyncDispose]: () => closers[Symbol.asyncDispose]() };
  });
}

async function keyOf(state: string): Promise<string> {
  const path = join(state, 'api-key');
  const kept = await readFile(path, 'utf8').catch(() => undefined);
  if (kept !== undefined && KEPT_KEY.test(kept.trim())) return kept.trim();
  const key = newKey();
  await writeFile(path, `${key}\n`, { mode: 0o600 });
  return key;
}

function newKey(): string {
  return `${KEY_PREFIX}${randomBytes(16).toString('hex')}`;
}
