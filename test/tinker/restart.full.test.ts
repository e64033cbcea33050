/** `trainyard tinker` as a process: killed at any moment, it starts again with everything that was saved, and nothing that was not. */
import { cp, mkdir, readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { start, trainyard } from '../cli/command.ts';
import { REGULAR, randomSample } from '../fixtures/nn/models.ts';
import { KEY, PlainClient, passOf, scratch } from '../fixtures/tinker/server.ts';

let home: Awaited<ReturnType<typeof scratch>>;
let running: ReturnType<typeof start> | undefined;
beforeEach(async () => {
  home = await scratch();
});
afterEach(async () => {
  running?.child.kill('SIGKILL');
  await running?.ended;
  await home.remove();
});

async function serving(...flags: readonly string[]): Promise<PlainClient> {
  const args = ['tinker', '--json', '--threads', '1', '--model', home.model, '--state', home.state, '--api-key', KEY, ...flags];
  running = start(args);
  while (!running.stdout().includes('\n')) {
    if (running.child.exitCode !== null) throw new Error((await running.ended).stderr);
    await sleep(20);
  }
  const { origin, apiKey, baseModel } = JSON.parse(running.stdout().split('\n')[0]!);
  expect({ apiKey, baseModel }).toEqual({ apiKey: KEY, baseModel: 'small' });
  return new PlainClient(origin);
}

async function kill(): Promise<void> {
  running!.child.kill('SIGKILL');
  await running!.ended;
}

const samples = [randomSample(REGULAR, 15, 1)];

describe('a server that was killed', () => {
  it('has what was saved, and neither its models nor its futures', async () => {
    const before = await serving();
    const model = await before.train();
    await model.pass(samples);
    await model.step();
    const { path } = await before.result(model.save('kept'));
    const trained = await before.passResult(await model.pass(samples));
    const step = await model.step();
    await kill();

    const after = await serving();
    expect((await after.post('retrieve_future', { request_id: step.json['request_id'] })).status).toBe(410);
    expect((await after.pass(passOf(model.id, 4, samples))).status).toBe(404);
    const again = await after.train();
    await after.result(again.post('load_weights', { path, optimizer: true }));
    expect(await after.passResult(await again.pass(samples))).toEqual(trained);
  });

  it('shows no weights that were half saved, and puts back what was about to be replaced', async () => {
    const before = await serving();
    const model = await before.train();
    const modelId = model.id;
    await before.result(model.save('whole'));
    await before.result(model.post('save_weights_for_sampler', { sampling_session_seq_id: 0 }));
    await kill();
    // As a kill leaves it: in the middle of writing one, and between the two renames of replacing another.
    const parent = join(home.state, modelId, 'weights');
    await cp(join(parent, 'whole'), join(parent, '.unfinished', 'half'), { recursive: true });
    await cp(join(parent, 'whole'), join(parent, '.replaced', 'old'), { recursive: true });
    await rm(join(parent, '.unfinished', 'half', 'model.safetensors'));
    await mkdir(join(parent, 'unlabelled'));

    const after = await serving();
    const { checkpoints } = (await after.get(`training_runs/${modelId}/checkpoints`)).json as {
      checkpoints: { checkpoint_id: string }[];
    };
    expect(checkpoints.map(({ checkpoint_id }) => checkpoint_id).toSorted()).toEqual(['weights/old', 'weights/whole']);
    expect((await readdir(parent)).toSorted()).toEqual(['old', 'unlabelled', 'whole']);
    expect(await readdir(join(home.state, modelId))).not.toContain('unnamed');
  });

  it('at any moment while it saves again and again has each state whole or not at all', async () => {
    let acknowledged = 0;
    const first = await serving();
    const model = await first.train();
    const saving = (async () => {
      for (;;) {
        await first.result(model.save(`s${model.seqId + 1}`));
        acknowledged = model.seqId;
      }
    })().catch(() => undefined);
    while (acknowledged < 3) await sleep(5);
    await sleep(Math.random() * 50);
    await kill();
    await saving;
    const after = await serving();
    const { checkpoints } = (await after.get(`training_runs/${model.id}/checkpoints`)).json as {
      checkpoints: { tinker_path: string }[];
    };
    expect(checkpoints.length).toBeGreaterThanOrEqual(acknowledged);
    for (const { tinker_path: path } of checkpoints.slice(0, 4)) {
      const loaded = (await after.train()).post('load_weights', { path, optimizer: true });
      expect(await after.result(loaded)).toMatchObject({ path });
    }
  });
});

describe('trainyard tinker', () => {
  it('has its state folder for itself', async () => {
    await serving();
    const second = await trainyard('tinker', '--model', home.model, '--state', home.state);
    expect(second).toMatchObject({ code: 1, stderr: expect.stringContaining('another process is using') });
    expect(second.stderr).toContain('--state');
  });

  it.each([
    [['--host', '0.0.0.0'], 'is not loopback'],
    [['--api-key', 'secret-but-not-theirs'], 'does not begin with tml-'],
    [['--model', '/no/such/folder'], 'no model folder'],
    [['--port', '70000'], 'from 0 to 65535'],
  ])('refuses %j', async (flags, said) => {
    const { code, stderr } = await trainyard('tinker', '--model', home.model, '--state', home.state, ...flags);
    expect({ code, stderr }).toEqual({ code: 2, stderr: expect.stringContaining(said) });
  });

  it('makes up a key where none is given, shows how to use it, and ends at Ctrl-C', async () => {
    const process = start(['tinker', '--threads', '1', '--model', home.model, '--state', home.state]);
    running = process;
    while (!process.stdout().includes('Ctrl-C')) await sleep(20);
    expect(process.stdout()).toMatch(/TINKER_BASE_URL=http:\/\/127\.0\.0\.1:\d+\n +export TINKER_API_KEY=tml-[0-9a-f]{32}\n/);
    process.child.kill('SIGINT');
    expect((await process.ended).code).toBe(0);
  });
});
