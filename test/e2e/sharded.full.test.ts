/** Training at a server that does what SkyRL's FSDP backend does by its source: test/fixtures/tinker/sharded-server.ts. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { RunEvent } from '../../src/core/events.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { jsonLines, start } from '../cli/command.ts';
import { type ShardedServer, sampleKey, startShardedServer } from '../fixtures/tinker/sharded-server.ts';
import { useSmallHome } from './small-run.ts';
import { API_KEY, useServer } from './tinker-server.ts';

const STEPS = 4;
const home = useSmallHome();
const behind = useServer(home);

const begin = (server: ShardedServer, args: readonly string[]) =>
  start(args, undefined, `export TINKER_BASE_URL=${server.baseURL} TINKER_API_KEY=${API_KEY}`);

const inFront = (options: { silentMs?: number; queueMs?: number } = {}): Promise<ShardedServer> =>
  startShardedServer({ target: behind.server.baseURL, silentMs: 300_000, ...options });

function flags(name: string, ...more: readonly string[]): string[] {
  const model = ['--engine', 'tinker', '--model', 'models/base', '--eval-every', '0', '--json'];
  return [...home.flags(join(home.dir, name), STEPS), ...model, ...more];
}

const resuming = (name: string): string[] => ['train', '--resume', join(home.dir, name), '--json'];
const warningsIn = (stdout: string): string[] =>
  (jsonLines(stdout) as RunEvent[]).flatMap((event) => (event.type === 'warning' ? [`${event.code}: ${event.message}`] : []));

async function lastWeights(name: string): Promise<Buffer> {
  const state = await readFile(join(home.dir, name, `checkpoints/step-00000${STEPS}/tinker.json`), 'utf8');
  const { path } = JSON.parse(state) as { readonly path: string };
  return readFile(join(home.dir, 'state', path.slice('tinker://'.length), 'model.safetensors'));
}

const UNCHECKED =
  /^POLICY_SERVER: this server does not say what a loss comes to.*FSDP or Megatron.*β, ε, weight decay.*masks are sent as weights$/;

describe('at a server that does not say what a loss comes to', () => {
  it.for(['ppo', 'importance_sampling'])('%s trains, with masks as weights and one warning', async (loss) => {
    await using server = await inFront();
    const { code, stdout, stderr } = await begin(server, flags(loss, '--loss', loss)).ended;
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(warningsIn(stdout)).toEqual([expect.stringMatching(UNCHECKED)]);
    const [probe, ...steps] = server.passes;
    expect(probe).toEqual({ loss, hasMasks: true, isAtRest: true });
    expect(steps).toEqual(Array(STEPS).fill({ loss, hasMasks: true, isAtRest: false }));
    expect(server.steps()).toBe(STEPS);
    const kept = await readFile(join(home.dir, loss, 'events.jsonl'), 'utf8');
    expect(kept).toContain('masks are sent as weights');
  });

  it.for([
    [2, []],
    [1, ['--checkpoint-every', '3']],
  ] as const)(
    'a run that was killed after step %i waits for the room of its old model, says so, and ends with the same bytes',
    async ([step, more]) => {
      await using server = await inFront({ silentMs: 12_000 });
      const name = `killed-${step}`;
      const { child, ended, prints } = begin(server, flags(name, '--loss', 'ppo', ...more));
      await prints(`"type":"step-end","step":${step},`);
      child.kill('SIGKILL');
      await ended;
      const { code, stdout } = await begin(server, resuming(name)).ended;
      const full = expect.stringMatching(/no room for a model .*register_adapter.*killed stays for up to five minutes/);
      expect([code, warningsIn(stdout)]).toEqual([0, [full, expect.stringMatching(UNCHECKED)]]);
      expect(await lastWeights(name)).toEqual(await lastWeights('ppo'));
    },
  );

  it('a run that was stopped goes on at once', async () => {
    await using server = await inFront();
    const { child, ended, prints } = begin(server, flags('stopped', '--loss', 'ppo'));
    await prints('"type":"step-end","step":2,');
    child.kill('SIGINT');
    await ended;
    const { code, stdout } = await begin(server, resuming('stopped')).ended;
    expect([code, warningsIn(stdout)]).toEqual([0, [expect.stringMatching(UNCHECKED)]]);
    expect(await lastWeights('stopped')).toEqual(await lastWeights('ppo'));
  });

  it('with staleness, a run that names no loss trains ppo, and each turn has the version that sampled it', async () => {
    await using server = await inFront({ queueMs: 150 });
    const { code, stdout, stderr } = await begin(server, flags('ahead', '--staleness', '1')).ended;
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    const other = /^POLICY_SERVER: loss: the server’s cispo: .*Invalid fields.*No --loss was given, so this run trains ppo$/;
    expect(warningsIn(stdout)).toEqual([expect.stringMatching(UNCHECKED), expect.stringMatching(other)]);
    expect(JSON.parse(await readFile(join(home.dir, 'ahead/run.json'), 'utf8'))).toMatchObject({ settings: { loss: 'ppo' } });
    await using store = await openSqliteStore(join(home.dir, 'ahead/store.sqlite'));
    const turns = (await store.query({ purpose: 'train' })).flatMap((trajectory) => trajectory.turns);
    const labels = turns.map((turn) => [turn.policyVersion, server.madeBy.get(sampleKey(turn.sampledIds, turn.logprobs))]);
    expect(labels.filter(([label, truth]) => label !== truth)).toEqual([]);
    expect(new Set(labels.map(([label]) => label)).size).toBeGreaterThan(1);
  });

  it.for([
    ['gspo', ['--loss', 'gspo'], /does not say what it comes to/, /--loss ppo/],
    ['cispo', ['--loss', 'cispo'], /the server’s cispo: .*Invalid fields/, /--loss ppo/],
    ['decoupled_ppo', ['--loss', 'decoupled_ppo', '--staleness', '1'], /Invalid fields/, /--loss ppo/],
    ['a dro', ['--loss', 'dro'], /does not report loss:sum/, /--loss ppo/],
    ['dpo', ['--loss', 'dpo'], /dpo .*does not report loss:sum/, /--loss ppo/],
    ['kl', ['--kl', '0.1'], /does not report loss:sum/, /leave out --kl and --entropy/],
    ['entropy', ['--entropy', '0.01'], /does not report loss:sum/, /leave out --kl and --entropy/],
  ] as const)('%s is refused before anything is sampled', async ([name, given, why, hint]) => {
    await using server = await inFront();
    const { code, stderr } = await begin(server, flags(`no-${name.replace(' ', '-')}`, ...given)).ended;
    expect(`${code} ${stderr}`).toMatch(/^2 error USAGE/);
    expect(stderr).toMatch(why);
    expect(stderr).toMatch(hint);
    expect([server.madeBy.size, server.steps()]).toEqual([0, 0]);
  });
});
