/** Every shape of class in a process of its own: the same trajectories as in this process, without answers and the run's keys. */
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import type { Workflow } from '../../src/core/contracts.ts';
import { asWorkflow, defineGrader } from '../../src/core/define.ts';
import type { Trajectory } from '../../src/core/types.ts';
import { listen } from '../../src/gateway/gateway.ts';
import type { ModuleExport } from '../../src/rollout/discovery.ts';
import { startWorkflow } from '../../src/rollout/runner.ts';
import { inspectFlow } from '../../src/shapes/flows/flows-file.ts';
import { Areal, Episode, Fickle, Flow, Liar, Osmosis, Tuner } from '../fixtures/processes/shapes.ts';
import { rolloutsThrough, scriptedGateway } from '../fixtures/scripted-gateway.ts';

const url = new URL('../fixtures/processes/shapes.ts', import.meta.url).href;
const model = fileURLToPath(new URL('../../models/base', import.meta.url));
const ANSWER = 'the-answer-is-4711';
const grader = defineGrader(({ turns }) => turns.length);
const signal = new AbortController().signal;

async function rollout(workflow: Workflow, module: ModuleExport): Promise<Trajectory> {
  const { gateway } = scriptedGateway((_, { seed, promptIds }) => `said ${seed % 89} to ${promptIds.length}`);
  await using _listener = await listen(gateway);
  await using started = await startWorkflow(workflow, { module, model, workers: 1, signal }, { gateway });
  process.env['TRAINYARD_TOKEN'] = ANSWER;
  const task = { id: 't', prompt: [{ role: 'user', content: 'hello' }] as const, answer: ANSWER };
  return await rolloutsThrough(gateway)({ ...started, grader }, task).finally(() => delete process.env['TRAINYARD_TOKEN']);
}

/** What is trained of it and what it earned. */
const trained = ({ turns, grade, metrics, metadata, outcome }: Trajectory): unknown => ({
  ...{ grade, metrics, metadata, outcome },
  turns: turns.map(({ request, startedAt, endedAt, ...turn }) => ({ ...turn, messages: request.messages })),
});

it.each([
  ['Osmosis', Osmosis],
  ['Tuner', Tuner],
  ['Flow', Flow],
  ['Episode', Episode],
  ['Areal', Areal],
  ['a flow by name', undefined],
] as const)(
  '%s runs in a process of its own, as in this one, and finds neither the answer nor the keys of the run',
  async (shape, exported) => {
    const byName = exported === undefined ? await inspectFlow(fileURLToPath(url), 'named_flow', undefined) : undefined;
    const workflow = byName?.entry?.workflow ?? asWorkflow(exported)!;
    const module = byName?.entry?.flowModule ?? { url, exportName: shape };
    expect(workflow.isolation).toBe('process');
    const apart = await rollout(workflow, module);
    const here = await rollout({ ...workflow, isolation: 'none' }, module);
    expect(apart.outcome).toEqual({ kind: 'completed' });
    expect(trained(apart)).toEqual(trained(here));
    expect(apart.turns.length).toBeGreaterThan(1);
    expect(apart.turns[1]?.after).toBe(0);
    const seen = (of: Trajectory) => JSON.parse(of.logs![0]!.text) as { pid: number; found: string; env: object; argv: string[] };
    const { pid, found, env, argv } = seen(apart);
    expect(pid).not.toBe(process.pid);
    expect(found).toBe('');
    expect(JSON.stringify([env, argv])).not.toMatch(/the-answer|TRAINYARD_TOKEN/);
    expect(seen(here)).toMatchObject({ pid: process.pid, found: expect.stringContaining(ANSWER) });
  },
);

it.each([
  ['Liar', Liar, 'WORKFLOW_BAD_RESULT', /none of the engine’s answers/],
  ['Fickle', Fickle, 'WORKFLOW_INVALID', /role "player" was given trainable: false in a process of its own/],
] as const)('%s fails by name', async (shape, exported, code, message) => {
  const { outcome } = await rollout(asWorkflow(exported)!, { url, exportName: shape });
  expect(outcome).toMatchObject({ kind: 'failed', code, message: expect.stringMatching(message) });
});

it('is refused as a field of instances, which exist only after the processes', () => {
  class Late extends Osmosis {
    isolation = 'process';
  }
  expect(() => asWorkflow(Late)).toThrow(/Late has a field isolation, expected a static one/);
});
