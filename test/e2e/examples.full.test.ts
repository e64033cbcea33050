/**
 * The examples as a newcomer runs them, briefly: every part real, on the shipped policy. Only what is each example's own; that every one of
 * them runs is in closed-network.full.test.ts, and whether they learn is in bench/LOG.md.
 */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { grader as shopGrader } from '../../examples/shop/agent.ts';
import { CLERK_PROMPT, customerPrompt } from '../../models/desk-domain.ts';
import { SYSTEM_PROMPT } from '../../models/shop-domain.ts';
import { TRIAGE_PROMPT } from '../../models/triage-domain.ts';
import { AgentFlowManager, flowRegistry, SingleStepSingleTurnAgentFlow } from '../../src/agent-flow.ts';
import { isSuccess } from '../../src/core/turns.ts';
import type { Reward, Task, Trajectory, Turn } from '../../src/core/types.ts';
import { callGrader, graderInput } from '../../src/grading/call.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { makeBatch } from '../../src/training/batch.ts';
import { jsonLines, ROOT, started, trainyard, useScratch } from '../cli/command.ts';

/** As many as every example has. */
const HELD_OUT = 4;
const EXAMPLES = join(ROOT, 'examples');
const home = useScratch();

/** A step or two of an example on the tasks in a folder, and the first held-out ones of it. No rollout may fail. */
async function trainBriefly(entry: string, folder: string, ...more: readonly string[]): Promise<readonly Trajectory[]> {
  const name = `${entry} ${more.join(' ')}`.replaceAll(/\W/g, '-');
  const run = join(home.dir, name);
  const lines = (await readFile(join(EXAMPLES, folder, 'held-out.jsonl'), 'utf8')).split('\n').slice(0, HELD_OUT);
  const heldOut = await home.write(`${name}.jsonl`, lines.join('\n'));
  const files = ['--tasks', join(EXAMPLES, folder, 'train.jsonl'), '--held-out', heldOut, '--run', run];
  const small = ['--steps', '1', '--groups-per-step', '3', '--group', '4', '--json'];
  const trained = await trainyard('train', join(EXAMPLES, entry), ...files, ...small, ...more);
  expect(trained).toMatchObject({ code: 0, stderr: '' });
  const scored = { n: HELD_OUT, failed: 0 };
  expect(jsonLines(trained.stdout).at(-1)).toMatchObject({ type: 'done', before: scored, after: scored });
  await using store = await openSqliteStore(join(run, 'store.sqlite'));
  const trajectories = await store.query();
  expect(new Set(trajectories.map(({ outcome }) => outcome.kind))).toEqual(new Set(['completed']));
  return trajectories;
}

const systemPromptOf = (turn: Turn | undefined): string | null | undefined => turn?.request.messages[0]?.content;
const turnsOf = ({ turns }: Trajectory, role: string): readonly Turn[] => turns.filter((turn) => turn.role === role);
const inTraining = (trajectories: readonly Trajectory[]) => trajectories.filter(({ purpose }) => purpose === 'train');
const rewardsOf = (trajectories: readonly Trajectory[]): readonly Reward[] =>
  trajectories.flatMap(({ grade }) => (grade.kind === 'graded' ? [grade.reward] : []));
const valuesOf = (trajectories: readonly Trajectory[]): Set<number> => new Set(rewardsOf(trajectories).map(({ value }) => value));

describe('the examples that the base policy was pretrained for', () => {
  it.each([
    ['shop', SYSTEM_PROMPT],
    ['triage', TRIAGE_PROMPT],
  ])('%s asks with that prompt, and is solved now and then, so that there is something to learn from', async (folder, prompt) => {
    const trajectories = await trainBriefly(`${folder}/agent.ts`, folder, '--groups-per-step', '6');
    for (const { turns } of trajectories) expect(systemPromptOf(turns[0])).toBe(prompt);
    expect(valuesOf(trajectories)).toEqual(new Set([0, 1]));
  });

  it('desk trains the clerk; the customer knows what it wants, tells it by its replies alone, and has no token in a sample', async () => {
    const training = inTraining(
      await trainBriefly('desk/agent.ts', 'desk', '--steps', '2', '--groups-per-step', '4', '--group', '8'),
    );
    const { samples, rolloutIds } = makeBatch(training);
    let asked = 0;
    for (const rollout of training) {
      const [clerk, customer] = [turnsOf(rollout, 'clerk'), turnsOf(rollout, 'customer')];
      expect(systemPromptOf(clerk[0])).toBe(CLERK_PROMPT);
      for (const turn of customer) {
        expect(turn).toMatchObject({ trainable: false, sampling: { effective: { temperature: 0 } } });
        expect(systemPromptOf(turn)).toMatch(new RegExp(`^${customerPrompt('\\d "\\w+ \\w+" in \\w+')}$`));
      }
      const replies = customer.map(({ response }) => response.content ?? '');
      const toClerk = clerk.at(-1)?.request.messages.filter(({ role }) => role === 'user') ?? [];
      expect(toClerk.slice(1).map(({ content }) => content)).toEqual(replies.slice(0, toClerk.length - 1));
      if (!rolloutIds.includes(rollout.rolloutId)) continue;
      asked += customer.length;
      const trained = samples
        .filter(({ rolloutId }) => rolloutId === rollout.rolloutId)
        .flatMap(({ tokens, mask }) => [...tokens].filter((_, index) => mask[index] === 1));
      expect(trained).toEqual(clerk.flatMap(({ sampledIds }) => [...sampledIds]));
    }
    expect(asked).toBeGreaterThan(5);
  });
});

describe('the examples of graders', () => {
  it('composed.ts gives a sum whose parts are all kept by name', async () => {
    const rewards = rewardsOf(await trainBriefly('shop/composed.ts', 'shop'));
    for (const { value, success, parts = {}, metrics = {} } of rewards) {
      const { correct = Number.NaN, lookedUp = Number.NaN, length = Number.NaN } = parts;
      expect(value).toBeCloseTo(0.8 * correct + 0.2 * lookedUp + 0.1 * length, 12);
      expect(success).toBe(correct === 1);
      expect(length).toBeCloseTo(-Math.min(1, Math.max(0, metrics['length.tokens']! - 80) / 400), 12);
    }
    expect(new Set(rewards.map(({ parts }) => parts?.['lookedUp']))).toEqual(new Set([0, 1]));
  });

  it('arithmetic.ts agrees, rollout by rollout, with the grader that the shop has of its own', async () => {
    const files = await Promise.all(['train', 'held-out'].map((name) => readFile(join(EXAMPLES, `shop/${name}.jsonl`), 'utf8')));
    const tasks = new Map(files.flatMap((text) => jsonLines<Task>(text)).map((task) => [task.id, task]));
    const trajectories = await trainBriefly('graders/arithmetic.ts', 'shop', '--groups-per-step', '4');
    const ctx = { signal: new AbortController().signal, model: undefined };
    for (const { taskId, turns, outcome, grade } of trajectories) {
      const own = await callGrader(shopGrader, graderInput(tasks.get(taskId)!, { turns, outcome }), ctx);
      if (grade.kind === 'graded') expect(own).toMatchObject({ kind: 'graded', reward: { value: grade.reward.value } });
    }
    const rewards = new Set(rewardsOf(trajectories).map(({ value, success }) => `${value} ${success}`));
    expect(rewards).toEqual(new Set(['1 true', '0 false']));
  });
});

describe('the AReaL examples', () => {
  it('async-workflow trains on the row it returned, and keeps the second opinion untrained', async () => {
    const trajectories = await trainBriefly('areal/async-workflow.ts', 'triage');
    expect(valuesOf(trajectories)).toEqual(new Set([0, 1]));
    for (const { turns, metrics } of trajectories) {
      expect(turns.map(({ trainable, request }) => `${trainable} ${request.dialect}`)).toEqual(['true undefined', 'false chat']);
      expect(Object.keys(metrics ?? {}).toSorted()).toEqual(['agrees', 'names_a_queue']);
    }
  });

  it('reward-wrapper is rewarded by its own processes', async () => {
    const trajectories = await trainBriefly('areal/reward-wrapper.ts', 'triage');
    expect(new Set(rewardsOf(trajectories).map(({ source }) => source))).toEqual(new Set(['workflow']));
    const values = valuesOf(trajectories);
    expect([...values].filter((value) => value !== 0).toSorted()).toEqual([0.5, 1]);
  });
});

describe('the Osmosis examples', () => {
  it.each([
    ['tools', 'shop', ['shop-agent']],
    ['two-agents', 'triage', ['first', 'second']],
  ])('%s has samples by their names, each with a reward', async (example, folder, samples) => {
    const trajectories = await trainBriefly(`osmosis/${example}.ts`, folder);
    expect(new Set(trajectories.flatMap(({ turns }) => turns.map(({ thread }) => thread)))).toEqual(new Set(samples));
    expect(trajectories.some(({ turns }) => turns.length > samples.length)).toBe(example === 'tools');
    expect(new Set(rewardsOf(trajectories).flatMap(({ byThread }) => Object.values(byThread ?? {})))).toEqual(new Set([0, 1]));
  });
});

describe('the examples in AgentScope’s shape', () => {
  const GOOD = ['villager', 'seer', 'witch', 'hunter'];
  const seatsIn = (trajectories: readonly Trajectory[]) =>
    new Set(
      trajectories.flatMap(({ turns }) => turns.map(({ role, trainable, model }) => `${role} ${model ?? 'policy'} ${trainable}`)),
    );

  it('the sums agent has tools and a structured answer, and says the same with either SDK', async () => {
    const withAiSdk = await trainBriefly('tuner/math-agent-ai-sdk.ts', 'shop');
    const calls = withAiSdk.flatMap(({ turns }) => turns.flatMap(({ response }) => response.tool_calls ?? []));
    expect(calls.map((call) => call.function.name)).toContain('lookup');
    for (const { turns, metadata } of withAiSdk) {
      expect(turns.at(-1)?.request.tools).toMatchObject([{ function: { name: 'final_result' } }]);
      expect(metadata).toHaveProperty('final_answer');
    }
    const saidAtFirst = (trajectories: readonly Trajectory[]) =>
      trajectories
        .filter(({ rolloutId }) => rolloutId.startsWith('e000000'))
        .map(({ rolloutId, turns }) => [rolloutId, ...turns.map(({ response }) => response.content)])
        .toSorted();
    expect(saidAtFirst(await trainBriefly('tuner/math-agent-openai-agents.ts', 'shop'))).toEqual(saidAtFirst(withAiSdk));
  });

  it('the sums agent learns to give right results in the form, on forced calls alone, and the run proves itself', async () => {
    const flags = ['--steps', '15', '--groups-per-step', '8', '--group', '8'];
    const training = inTraining(await trainBriefly('tuner/math-agent-ai-sdk.ts', 'shop', ...flags));
    const solved = (from: number, to: number): number => {
      const those = training.filter(({ turns: [turn] }) => turn!.policyVersion >= from && turn!.policyVersion < to);
      return those.filter(({ grade }) => grade.kind === 'graded' && grade.reward.value === 1).length / those.length;
    };
    expect(solved(0, 3)).toBeLessThan(0.08);
    expect(solved(10, 15)).toBeGreaterThan(0.1);
    for (const { turns } of training) {
      const last = turns.at(-1)!;
      expect(last.constrained?.tool).toBe('final_result');
      if (last.stopReason === 'stop')
        expect(JSON.parse(last.response.tool_calls![0]!.function.arguments)).toHaveProperty('result');
    }
    const name = `tuner/math-agent-ai-sdk.ts ${flags.join(' ')}`.replaceAll(/\W/g, '-');
    expect(await trainyard('verify', join(home.dir, name))).toMatchObject({ code: 0 });
  });

  it('two roles train the clerk; the customer is its default model', async () => {
    expect(seatsIn(await trainBriefly('tuner/advanced-roles.ts', 'desk'))).toEqual(
      new Set(['clerk policy true', 'customer insist false']),
    );
  });

  it('werewolves are trained by what their role earned, while default models answer for everybody else', async () => {
    const trajectories = await trainBriefly('tuner/werewolves/agent.ts', 'tuner/werewolves', '--turns', '200');
    expect(seatsIn(trajectories)).toEqual(new Set(['werewolf policy true', ...GOOD.map((role) => `${role} qwen-max false`)]));
    const training = inTraining(trajectories);
    for (const { turns, grade } of training) {
      const byRole = grade.kind === 'graded' ? grade.reward.byRole : undefined;
      expect(new Set(Object.keys(byRole ?? {}))).toEqual(new Set(turns.map(({ role }) => role)));
    }
    const { samples } = makeBatch(training);
    expect(samples.length).toBeGreaterThan(0);
    expect(samples.length).toBeLessThanOrEqual(training.flatMap((one) => turnsOf(one, 'werewolf')).length);
  });

  it('werewolves leave the training to the village with a flag', async () => {
    const flags = ['--turns', '200', '--trainable', GOOD.join(',')];
    const trajectories = await trainBriefly('tuner/werewolves/agent.ts', 'tuner/werewolves', ...flags);
    expect(seatsIn(inTraining(trajectories))).toEqual(
      new Set(['werewolf qwen-plus false', ...GOOD.map((role) => `${role} policy true`)]),
    );
    for (const trajectory of trajectories) {
      const isWon = trajectory.metadata?.['winner'] === 'village';
      expect(trajectory.grade).toMatchObject({ reward: { value: isWon ? 1 : 0 } });
      expect(isSuccess(trajectory), 'of those who are trained, not of the werewolves').toBe(isWon);
    }
  });
});

describe('the agent flows', () => {
  const flows = join(EXAMPLES, 'agent-flow/flows.yaml');
  const tasks = join(EXAMPLES, 'triage/train.jsonl');

  it('of a file of flows are trained by name, and the run is resumed', async () => {
    const run = join(home.dir, 'named');
    const small = ['--groups-per-step', '2', '--group', '4', '--eval-every', '0', '--threads', '1', '--steps', '1'];
    const named = ['--flow', 'single_step', '--flows', flows, '--tasks', tasks, '--run', run];
    expect(await trainyard('train', ...named, ...small)).toMatchObject({ code: 0, stderr: '' });
    const again = await trainyard('train', '--resume', run, '--steps', '2', '--json');
    expect(again).toMatchObject({ code: 0, stderr: '', stdout: expect.stringMatching(/"type":"done".*"steps":2/) });
  });

  it('of other processes are captured by trainyard serve, with their rewards or the grader’s', async () => {
    const run = join(home.dir, 'served');
    const grading = ['--entry', join(EXAMPLES, 'agent-flow/single-step.ts'), '--tasks', tasks];
    const args = ['serve', '--json', '--threads', '1', '--run', run, ...grading];
    const server = await started<{ origin: string; flowKey: string }>(args);
    const { origin, flowKey } = server.first;
    const post = async (url: string, body: object) => {
      const headers = { authorization: `Bearer ${flowKey}`, 'content-type': 'application/json' };
      return (await (await fetch(url, { method: 'POST', headers, body: JSON.stringify(body) })).json()) as Record<string, string>;
    };
    const named = flowRegistry([{ name: 'x', flow: SingleStepSingleTurnAgentFlow }]);
    const manager = new AgentFlowManager({ flows: named, defaultFlow: 'x', gatewayUrl: origin, gatewayKey: flowKey });
    const ids = ['train-0001', 'train-0001', 'train-0002'];
    const ended = await manager.run(ids.map((id) => ({ id, prompt: 'Where is it?' })));
    expect(ended.map(({ kind }) => kind)).toEqual(['completed', 'completed', 'completed']);
    const { base_url: baseURL, api_key: apiKey } = await post(`${origin}/init_trajectory`, {});
    const client = new OpenAI({ baseURL: baseURL!, apiKey: apiKey! });
    await client.chat.completions.create({ model: 'any', messages: [{ role: 'user', content: 'hello' }], max_tokens: 4 });
    expect(await post(`${baseURL}/complete_trajectory`, { reward: 0.5 })).toEqual({ status: 'ok', num_steps: 1 });
    server.child.kill('SIGINT');
    expect((await server.ended).code).toBe(0);
    await using store = await openSqliteStore(join(run, 'store.sqlite'));
    const kept = await store.query();
    const flowsKept = kept.slice(0, 3);
    expect(flowsKept.map(({ groupId }) => groupId).toSorted()).toEqual(ids);
    expect(flowsKept.every(({ grade }) => grade.kind === 'graded')).toBe(true);
    expect(kept[3]).toMatchObject({ grade: { kind: 'graded', reward: { value: 0.5, source: 'workflow' } } });
  });
});
