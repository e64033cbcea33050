/** A warm start and the training that follows it, from one command: with the embedded policy and through a Tinker server. */
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { jsonLines, killedAt, start, trainyard } from '../cli/command.ts';
import { useSmallHome } from './small-run.ts';
import { API_KEY, useServer } from './tinker-server.ts';

const home = useSmallHome();
const used = useServer(home);
let taught: string;

beforeAll(async () => {
  taught = join(home.dir, 'taught');
  const tasks = ['--held-out', join(home.dir, 'train.jsonl'), '--n', '16'];
  expect(await trainyard('eval', home.entry, ...tasks, '--run', taught)).toMatchObject({ code: 0 });
});

const flags = (name: string, ...more: readonly string[]): string[] => [
  ...home.flags(join(home.dir, name), 2),
  ...['--warm-start', taught, '--json', ...more],
];
const modelOf = async (name: string): Promise<string> =>
  JSON.parse(await readFile(join(home.dir, name, 'run.json'), 'utf8')).settings.model;

describe('a training run with a warm start', () => {
  it('teaches the successes first, trains on from there, is resumed, and proves itself', async () => {
    const run = await trainyard(...flags('warm'));
    expect(run).toMatchObject({ code: 0, stderr: '' });
    const events = jsonLines(run.stdout);
    const end = events.find((event) => event.type === 'sft-end');
    expect(end!.checkpoint).toContain('warm-warm-start/checkpoints/');
    expect(events.filter((event) => event.type === 'step-end')).toHaveLength(2);
    expect(await modelOf('warm')).toBe(end!.checkpoint);
    const resumed = await trainyard('train', '--resume', join(home.dir, 'warm'), '--steps', '3', '--json');
    expect(resumed).toMatchObject({ code: 0, stderr: '' });
    expect(await trainyard('verify', join(home.dir, 'warm'))).toMatchObject({ code: 0 });
  }, 120_000);

  it('begins a warm start anew that was killed, when the same command is given again', async () => {
    await killedAt('"type":"sft-step","step":2', flags('killed', '--warm-start-epochs', '2'));
    expect(existsSync(join(home.dir, 'killed'))).toBe(false);
    const run = await trainyard(...flags('killed', '--warm-start-epochs', '2'));
    expect(run).toMatchObject({ code: 0, stderr: '' });
    const undisturbed = await trainyard(...flags('whole', '--warm-start-epochs', '2'));
    const rewards = (stdout: string) => jsonLines(stdout).flatMap((one) => (one.type === 'step-end' ? [one.loss] : []));
    expect(rewards(run.stdout)).toEqual(rewards(undisturbed.stdout));
  }, 120_000);

  it('refuses a directory that holds a run before it teaches anything', async () => {
    const again = await trainyard(...flags('warm'));
    expect(again.code).not.toBe(0);
    expect(again.stderr).toContain('RUN_NOT_EMPTY');
    expect(again.stdout).not.toContain('sft-');
  }, 60_000);

  it('does the same through a Tinker server', async () => {
    const through = [...flags('tinker'), '--engine', 'tinker', '--model', 'models/base'];
    const run = await start(through, undefined, `export TINKER_BASE_URL=${used.server.baseURL} TINKER_API_KEY=${API_KEY}`).ended;
    expect(run).toMatchObject({ code: 0, stderr: '' });
    const events = jsonLines(run.stdout);
    const { validationLoss } = events.find((event) => event.type === 'sft-end')!;
    if (validationLoss) expect(validationLoss.after).toBeLessThan(validationLoss.before);
    expect(events.filter((event) => event.type === 'step-end')).toHaveLength(2);
    expect(existsSync(join(await modelOf('tinker'), 'tinker.json'))).toBe(true);
  }, 120_000);
});
