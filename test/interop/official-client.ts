/**
 * The official Tinker client, in Python, against `trainyard tinker`: a process of our command line on the base policy.
 *
 * What is checked stands in official_client.py; here the two are brought together and its results are told.
 */
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { freePort, startServer, TRAINYARD } from './child.ts';
import { cache, root } from './python-environment.ts';
import type { Report } from './report.ts';

const MODEL = join(root, 'models/base');
/** As long as the server asks for, with the first letters that the hosted service's keys have. */
const KEY = 'tml-interop-check-of-the-client';

export async function checkOfficialClient(report: Report, python: string): Promise<void> {
  const state = join(cache, 'tinker-state');
  await rm(state, { recursive: true, force: true });
  await mkdir(state, { recursive: true });
  const port = await freePort();
  const address = `http://127.0.0.1:${port}`;
  const env = { TINKER_BASE_URL: address, TINKER_API_KEY: KEY, TINKER_TELEMETRY: '0', HF_HUB_OFFLINE: '1' };
  const served = [...TRAINYARD.args, 'tinker', '--model', MODEL, '--port', String(port), '--state', state];
  await using _server = await startServer({ ...TRAINYARD, args: served, env, limitMs: 60_000 }, address);
  const args = [join(import.meta.dirname, 'official_client.py'), 'base', MODEL];
  const program = { command: python, args, env, limitMs: 300_000 };
  await report.checkBy('the official client runs through all its checks', program);
}
