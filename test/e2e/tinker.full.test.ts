/** Training through a Tinker server in another process: undisturbed, with the server killed, with the run killed. */
import { cp, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { RunEvent } from '../../src/core/events.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { jsonLines, start } from '../cli/command.ts';
import { databaseFor, needsPostgres } from '../postgres/server.ts';
import { useSmallHome } from './small-run.ts';
import { API_KEY, startServer, useServer } from './tinker-server.ts';

const STEPS = 5;
const home = useSmallHome();
const used = useServer(home);

function begin(args: readonly string[], key = API_KEY) {
  return start(args, undefined, `export TINKER_BASE_URL=${used.server.baseURL} TINKER_API_KEY=${key}`);
}

function flags(name: string, ...more: readonly string[]): string[] {
  const model = ['--engine', 'tinker', '--model', 'models/base'];
  return [...home.flags(join(home.dir, name), STEPS), ...model, '--eval-every', '2', '--json', ...more];
}

const warningsIn = (stdout: string): string[] =>
  jsonLines(stdout).flatMap((event) => (event.type === 'warning' ? [event.code] : []));

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

async function restartServer(): Promise<void> {
  await used.server.kill();
  used.server = await startServer(home.dir, used.server.port);
}

describe('a run through a Tinker server', () => {
  it('takes its steps and leaves a checkpoint that can be measured', async () => {
    const whole = await begin(flags('whole')).ended;
    expect(whole).toMatchObject({ code: 0, stderr: '' });
    expect(warningsIn(whole.stdout)).toEqual([]);
    const steps = jsonLines(whole.stdout).filter((event) => event.type === 'step-end');
    expect(steps).toHaveLength(STEPS);
    for (const { loss, gradNorm } of steps) expect([Number.isFinite(loss), (gradNorm ?? 0) > 0]).toEqual([true, true]);
    await trainedOnce('whole');
    const checkpoint = join(home.dir, 'whole/checkpoints/step-000005');
    const measured = await begin(['eval', home.entry, '--model', checkpoint, '--run', join(home.dir, 'measured'), '--json'])
      .ended;
    expect(measured).toMatchObject({ code: 0, stderr: '' });
    const after = jsonLines(whole.stdout).find((event) => event.type === 'eval-end' && event.when === 'after');
    const again = jsonLines(measured.stdout).find((event) => event.type === 'eval-end');
    expect(again).toMatchObject({ score: (after as RunEvent & { type: 'eval-end' }).score });
  });

  it('has its rollouts run by workers, on weights that it saved for them, to the same bytes', needsPostgres, async () => {
    await using database = await databaseFor();
    const worker = begin(['worker', '--store', database.url, '--json']);
    const shared = begin(flags('workers', '--store', database.url, '--workers', 'external'));
    await shared.prints('"type":"step-end","step":2,');
    await restartServer();
    expect(await shared.ended).toMatchObject({ code: 0, stderr: '' });
    expect(await lastState('workers')).toEqual(await lastState('whole'));
    worker.child.kill('SIGTERM');
    expect(await worker.ended).toMatchObject({ code: 0, stdout: expect.stringMatching(/"type":"left","rollouts":[1-9]/) });
    const left = await readdir(join(home.dir, 'state'), { recursive: true });
    expect(left.filter((path) => path.includes('sampler_weights/trainyard-'))).toEqual([]);
  });

  it('goes on by itself when the server is killed and started again, to the same bytes', async () => {
    const { ended, prints, stdout } = begin(flags('forgotten'));
    for (const step of [2, 4]) {
      await prints(`"type":"step-end","step":${step},`);
      await restartServer();
    }
    expect(await ended).toMatchObject({ code: 0, stderr: '' });
    expect(warningsIn(stdout())).toEqual(expect.arrayContaining(['POLICY_LOST', 'POLICY_RESTORED']));
    await trainedOnce('forgotten');
    expect(await lastState('forgotten')).toEqual(await lastState('whole'));
  });

  it('computes the steps since the last checkpoint again', async () => {
    const { ended, prints } = begin(flags('rare', '--checkpoint-every', '3', '--eval-every', '0'));
    await prints('"type":"step-end","step":2,');
    await restartServer();
    expect(await ended).toMatchObject({ code: 0, stderr: '' });
    await trainedOnce('rare');
    expect(await lastState('rare')).toEqual(await lastState('whole'));
  });

  it('is taken up again after being killed, and after the server was too', async () => {
    const { child, ended, prints } = begin(flags('killed'));
    await prints('"type":"step-end","step":3,');
    child.kill('SIGKILL');
    await ended;
    await restartServer();
    const resumed = await begin(['train', '--resume', join(home.dir, 'killed'), '--json']).ended;
    expect(resumed).toMatchObject({ code: 0, stderr: '' });
    await trainedOnce('killed');
    expect(await lastState('killed')).toEqual(await lastState('whole'));
  });

  it('is found again by its checkpoint and its run.json, without the address in the environment', async () => {
    const checkpoint = join(home.dir, 'whole/checkpoints/step-000005');
    const withKeyOnly = (args: readonly string[]) =>
      start(args, undefined, `unset TINKER_BASE_URL; export TINKER_API_KEY=${API_KEY}`).ended;
    const measuring = ['eval', home.entry, '--model', checkpoint, '--run', join(home.dir, 'measured-again'), '--json'];
    expect(await withKeyOnly(measuring)).toMatchObject({ code: 0, stderr: '' });
    expect(await withKeyOnly(['train', '--resume', join(home.dir, 'whole'), '--json'])).toMatchObject({ code: 0, stderr: '' });
  });

  it('names the server in its output, and does not say that weights are where they are not', async () => {
    const { stdout } = await begin([...flags('plain', '--steps', '1').filter((flag) => flag !== '--json')]).ended;
    expect(stdout).toContain(`Policy base at 127.0.0.1:${used.server.port}`);
    expect(stdout).toContain(`The trained model is at ${used.server.baseURL}, by the name in `);
    const checkpoint = join(home.dir, 'whole/checkpoints/step-000005');
    const embedded = await begin(['eval', home.entry, '--engine', 'embedded', '--model', checkpoint]).ended;
    expect(`${embedded.code} ${embedded.stderr}`).toMatch(
      /^2 error MODEL_INVALID: the weights of .* are not in it but at a Tinker server/,
    );
  });

  it('ends at the first Ctrl-C where it has not begun', async () => {
    const nowhere = `export TINKER_BASE_URL=http://127.0.0.1:1 TINKER_API_KEY=${API_KEY}`;
    const { child, ended, prints } = start(flags('unbegun'), undefined, nowhere);
    await prints('POLICY_SERVER');
    child.kill('SIGINT');
    expect(await ended).toMatchObject({ code: 130, stderr: expect.stringContaining('Interrupted before anything ran') });
  });

  it('is refused before anything is spent where it cannot work', async () => {
    const other = join(home.dir, 'other-tokenizer');
    await cp('models/base', other, { recursive: true });
    await writeFile(join(other, 'tokenizer.json'), `${await readFile(join(other, 'tokenizer.json'), 'utf8')} `);
    const noModel = flags('no').filter((flag, i, all) => flag !== '--model' && all[i - 1] !== '--model');
    const refusals: readonly (readonly [RegExp, readonly string[], string?])[] = [
      [/^2 error POLICY_REFUSED: .*401.*TINKER_API_KEY/s, flags('no'), 'tml-wrong-0123456789abcdef'],
      [/^2 error USAGE: TINKER_API_KEY is not set/, flags('no'), ''],
      [/^2 error USAGE: --temperature: expected 1 with a Tinker server/, flags('no', '--temperature', '0.7')],
      [/^2 error MODEL_INVALID: tokenizer.json in .* is not the one of base at the server/, flags('no', '--model', other)],
      [/^2 error USAGE: (?:--)?model: expected the folder of the model at the Tinker server/, noModel],
      [/^2 error USAGE: --base-model: expected engine tinker/, flags('no', '--engine', 'embedded', '--base-model', 'base')],
      [/^2 error USAGE: .*does not offer "Qwen\/Qwen3-8B"; it has base/, flags('no', '--base-model', 'Qwen/Qwen3-8B')],
    ];
    for (const [refusal, args, key] of refusals) {
      const { code, stderr } = await begin(args, key).ended;
      expect(`${code} ${stderr}`).toMatch(refusal);
    }
  });
});
