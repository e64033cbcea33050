/** Training through a Tinker server in another process: undisturbed, with the server killed, with the run killed. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { RunEvent } from '../../src/core/events.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { start } from '../cli/command.ts';
import { type Home, smallHome } from './small-run.ts';
import { API_KEY, type ServerProcess, startServer } from './tinker-server.ts';

const STEPS = 5;
let home: Home;
let server: ServerProcess;

beforeAll(async () => {
  home = await smallHome();
  server = await startServer(home.dir);
});
afterAll(async () => {
  await server.kill();
  await home.remove();
});

function begin(args: readonly string[], key = API_KEY) {
  return start(args, undefined, `export TINKER_BASE_URL=${server.baseURL} TINKER_API_KEY=${key}`);
}

function flags(name: string, ...more: readonly string[]): string[] {
  return [...home.flags(join(home.dir, name), STEPS), '--engine', 'tinker', '--eval-every', '2', '--json', ...more];
}

function eventsOf(stdout: string): RunEvent[] {
  return stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as RunEvent);
}

function warningsIn(stdout: string): string[] {
  return eventsOf(stdout).flatMap((event) => (event.type === 'warning' ? [event.code] : []));
}

/** What the server kept for the last step of a run: weights and optimizer state. */
async function lastState(name: string): Promise<readonly Buffer[]> {
  const checkpoint = join(home.dir, name, 'checkpoints', `step-00000${STEPS}`);
  const { path } = JSON.parse(await readFile(join(checkpoint, 'tinker.json'), 'utf8')) as { readonly path: string };
  const folder = join(home.dir, 'state', path.slice('tinker://'.length));
  return await Promise.all(['model.safetensors', 'optimizer.safetensors'].map((file) => readFile(join(folder, file))));
}

async function trainedOnce(name: string): Promise<void> {
  await using store = await openSqliteStore(join(home.dir, name, 'store.sqlite'));
  const manifests = await store.manifests();
  expect(manifests.map(({ step, policyVersion }) => [step, policyVersion])).toEqual(
    Array.from({ length: STEPS }, (_, i) => [i + 1, i + 1]),
  );
  const trained = manifests.flatMap(({ rolloutIds }) => rolloutIds);
  expect(new Set(trained).size).toBe(trained.length);
}

async function reached(stdout: () => string, text: string): Promise<void> {
  while (!stdout().includes(text)) await new Promise((resolve) => setTimeout(resolve, 5));
}

describe('a run through a Tinker server', () => {
  it('takes its steps and leaves a checkpoint that can be measured', async () => {
    const whole = await begin(flags('whole')).ended;
    expect(whole).toMatchObject({ code: 0, stderr: '' });
    expect(warningsIn(whole.stdout)).toEqual([]);
    const steps = eventsOf(whole.stdout).filter((event) => event.type === 'step-end');
    expect(steps).toHaveLength(STEPS);
    for (const { loss, gradNorm } of steps) expect([Number.isFinite(loss), (gradNorm ?? 0) > 0]).toEqual([true, true]);
    await trainedOnce('whole');
    const measured = await begin(['eval', home.entry, '--model', join(home.dir, 'whole/checkpoints/step-000005'), '--json'])
      .ended;
    expect(measured).toMatchObject({ code: 0, stderr: '' });
    const after = eventsOf(whole.stdout).find((event) => event.type === 'eval-end' && event.when === 'after');
    const again = eventsOf(measured.stdout).find((event) => event.type === 'eval-end');
    expect(again).toMatchObject({ score: (after as RunEvent & { type: 'eval-end' }).score });
  });

  it('goes on by itself when the server is killed and started again, to the same bytes', async () => {
    const { ended, stdout } = begin(flags('forgotten'));
    for (const step of [2, 4]) {
      await reached(stdout, `"type":"step-end","step":${step},`);
      await server.kill();
      server = await startServer(home.dir, server.port);
    }
    const { code, stderr } = await ended;
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(warningsIn(stdout())).toEqual(expect.arrayContaining(['POLICY_LOST', 'POLICY_RESTORED']));
    await trainedOnce('forgotten');
    expect(await lastState('forgotten')).toEqual(await lastState('whole'));
  });

  it('computes the steps since the last checkpoint again', async () => {
    const { ended, stdout } = begin(flags('rare', '--checkpoint-every', '3', '--eval-every', '0'));
    await reached(stdout, '"type":"step-end","step":2,');
    await server.kill();
    server = await startServer(home.dir, server.port);
    expect(await ended).toMatchObject({ code: 0, stderr: '' });
    await trainedOnce('rare');
    expect(await lastState('rare')).toEqual(await lastState('whole'));
  });

  it('is taken up again after being killed, and after the server was too', async () => {
    const { child, ended, stdout } = begin(flags('killed'));
    await reached(stdout, '"type":"step-end","step":3,');
    child.kill('SIGKILL');
    await ended;
    await server.kill();
    server = await startServer(home.dir, server.port);
    const resumed = await begin(['train', '--resume', join(home.dir, 'killed'), '--json']).ended;
    expect(resumed).toMatchObject({ code: 0, stderr: '' });
    await trainedOnce('killed');
    expect(await lastState('killed')).toEqual(await lastState('whole'));
  });

  it('is refused before anything is spent where it cannot work', async () => {
    const refused = async (args: readonly string[], key?: string) => {
      const { code, stderr } = await begin(args, key).ended;
      return `${code} ${stderr}`;
    };
    expect(await refused(flags('no'), 'tml-wrong-0123456789abcdef')).toMatch(/^2 error POLICY_REFUSED: .*401.*TINKER_API_KEY/s);
    expect(await refused(flags('no'), '')).toMatch(/^2 error USAGE: TINKER_API_KEY is not set/);
    expect(await refused(flags('no', '--temperature', '0.7'))).toMatch(
      /^2 error USAGE: temperature: expected 1 with a Tinker server/,
    );
    expect(await refused(flags('no', '--base-model', 'Qwen/Qwen3-8B'))).toMatch(
      /^2 error USAGE: .*does not offer "Qwen\/Qwen3-8B"; it has base/,
    );
  });
});
