/** AgentFlowManager, its workers, and the registry: against a gateway as `trainyard serve` has it. */
import { spawnSync } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import {
  type FlowClass,
  type FlowFields,
  flowRegistry,
  type ManagerOptions,
  register,
  type SamplingParams,
  SingleStepSingleTurnAgentFlow,
  Step,
} from '../../src/agent-flow.ts';
import { flowBench, managerOf } from './bench.ts';

type Run = [SamplingParams, FlowFields];
const indexOf = ([, fields]: Run): number => (fields as unknown as { i: number }).i;

function managed(flow: FlowClass, options: Partial<ManagerOptions> = {}) {
  const bench = flowBench();
  return { bench, manager: managerOf(bench, flow, options) };
}

const rows = (count: number) =>
  Array.from({ length: count }, (_, i) => ({ id: `p${i}`, prompt: `question ${i}`, answer: 'SECRET', i }));

describe('the manager', () => {
  it('takes any number of rows with 8 workers, and keeps their order', async () => {
    class Shuffled extends SingleStepSingleTurnAgentFlow {
      override async run(...given: Run): Promise<number> {
        await sleep((indexOf(given) * 7) % 5);
        return indexOf(given);
      }
    }
    const { manager } = managed(Shuffled);
    for (const count of [0, 1, 7, 8, 9, 64]) {
      const results = await manager.run(rows(count));
      expect(results.map(({ numSteps }) => numSteps)).toEqual(rows(count).map(({ i }) => i));
    }
  });

  it('goes on where one of a hundred throws; that one is recorded as failed', async () => {
    class Unlucky extends SingleStepSingleTurnAgentFlow {
      override async run(...given: Run): Promise<number> {
        if (indexOf(given) !== 41) return await super.run(...given);
        const { trajectoryUid, promptUid, prompt } = given[1];
        await this.gatewayGenerate({ trajectoryUid, promptUid, messages: prompt });
        throw new Error('tool exploded');
      }
    }
    const { manager, bench } = managed(Unlucky);
    const results = await manager.run(rows(100));
    expect(results.filter(({ kind }) => kind === 'completed')).toHaveLength(99);
    expect(results[41]).toMatchObject({ kind: 'failed', error: 'tool exploded', numSteps: 0 });
    const stored = await bench.stored();
    expect(stored).toHaveLength(100);
    expect(stored.filter(({ outcome }) => outcome.kind === 'failed')).toMatchObject([
      { groupId: 'p41', outcome: { message: 'tool exploded' } },
    ]);
  });

  it('ends an episode at its time, frees its worker, and tells the flow', async () => {
    let told = false;
    class Stuck extends SingleStepSingleTurnAgentFlow {
      override async run(...given: Run): Promise<number> {
        if (indexOf(given) > 0) return await super.run(...given);
        this.signal.addEventListener('abort', () => {
          told = true;
        });
        return await new Promise(() => {});
      }
    }
    const results = await managed(Stuck, { workers: 1, timeoutMs: 200 }).manager.run(rows(3));
    expect(results).toMatchObject([
      { kind: 'failed', error: 'not done within 200 ms' },
      { kind: 'completed' },
      { kind: 'completed' },
    ]);
    expect(told).toBe(true);
  });

  it('keeps the process alive until then, where a hanging flow is all that is left of it', async () => {
    const program = `
      import { AgentFlowBase, AgentFlowManager, flowRegistry } from 'trainyard/agent-flow';
      class Stuck extends AgentFlowBase { run() { return new Promise(() => {}); } }
      const fetch = async () => new Response('{"error":{"message":"gone"}}', { status: 410 });
      const options = { defaultFlow: 'x', gatewayUrl: 'http://gateway', gatewayKey: 'k', fetch, timeoutMs: 200 };
      const manager = new AgentFlowManager({ flows: flowRegistry([{ name: 'x', flow: Stuck }]), ...options });
      console.log((await manager.run([{ prompt: 'a' }]))[0].error);`;
    const flags = ['--conditions=trainyard-source', '--input-type=module', '--eval', program];
    const { status, stdout } = spawnSync(process.execPath, flags, { encoding: 'utf8' });
    expect([status, stdout]).toEqual([0, 'not done within 200 ms\n']);
  });

  it('gives rows to flows without their answers, each with names of its own', async () => {
    const seen: unknown[] = [];
    class Curious extends SingleStepSingleTurnAgentFlow {
      override async run(...given: Run): Promise<number> {
        seen.push(given);
        return await super.run(...given);
      }
    }
    const { manager, bench } = managed(Curious);
    await manager.run([...rows(2), { ...rows(1)[0]!, promptUid: 'p1' }]);
    expect(JSON.stringify(seen)).not.toContain('SECRET');
    expect((await bench.stored()).map(({ groupId }) => groupId).toSorted()).toEqual(['p0', 'p1', 'p1']);
  });

  it('runs each row by its agent_name, and refuses one that is not there before anything runs', async () => {
    let ran = 0;
    class Other extends SingleStepSingleTurnAgentFlow {
      override async run(): Promise<number> {
        ran++;
        return 7;
      }
    }
    register('another_one')(Other);
    const { manager } = managed(SingleStepSingleTurnAgentFlow);
    const other = { prompt: 'a', agent_name: 'another_one' };
    expect((await manager.run([other, { prompt: 'b' }])).map(({ numSteps }) => numSteps)).toEqual([7, 1]);
    const missing = manager.run([other, { prompt: 'b', agent_name: 'nobody' }]);
    await expect(missing).rejects.toThrow(/no flow "nobody"; there are .*another_one.*x/);
    expect(ran).toBe(1);
  });

  it('refuses strange settings', () => {
    expect(() => managed(SingleStepSingleTurnAgentFlow, { workers: 0 })).toThrow('workers');
    for (const timeoutMs of [0, Number.NaN, 2 ** 31])
      expect(() => managed(SingleStepSingleTurnAgentFlow, { timeoutMs })).toThrow('timeoutMs');
    expect(() => managed(SingleStepSingleTurnAgentFlow, { defaultFlow: 'nobody' })).toThrow('no flow "nobody"');
  });
});

describe('register', () => {
  it('gives the class back, takes it twice, and refuses another class of that name and what is no flow', () => {
    class One extends SingleStepSingleTurnAgentFlow {}
    expect(register('one')(One)).toBe(One);
    register('one')(One);
    expect(() => register('one')(class Two extends SingleStepSingleTurnAgentFlow {})).toThrow('registered already, as One');
    expect(() => register('three')(class {} as never)).toThrow('expected a class with an async run');
    expect(() => register('a b')).toThrow('expected a name');
  });

  it('gives way to the flows file', () => {
    class Registered extends SingleStepSingleTurnAgentFlow {}
    class Configured extends SingleStepSingleTurnAgentFlow {}
    register('both')(Registered);
    expect(flowRegistry().flow('both').flow).toBe(Registered);
    expect(flowRegistry([{ name: 'both', flow: Configured }]).flow('both').flow).toBe(Configured);
  });
});

describe('Step', () => {
  const right = { promptIds: [1], responseIds: [2, 3], trajectoryUid: 't', promptUid: 'p' };

  it('has the twelve fields with their defaults', () => {
    expect({ ...new Step(right) }).toEqual({
      ...{ ...right, reward: null, multiModalData: null, rolloutLogProbs: null, routedExperts: null },
      ...{ stepIndex: 0, policyVersion: 0, isLast: false, metadata: null },
    });
  });

  it('says all that is wrong at once', () => {
    const ids = { promptIds: [], responseIds: [1.5], trajectoryUid: '' };
    const wrong = { ...ids, stepIndex: -1, reward: Number.NaN, isLast: 'yes', rewrd: 1 };
    const all = 'promptIds: .*responseIds: .*reward: .*trajectoryUid: .*promptUid: .*stepIndex: .*isLast: ';
    expect(() => new Step(wrong as never)).toThrow(new RegExp(`a step has no option rewrd, did you mean reward.*${all}`));
    expect(() => new Step({ ...right, rolloutLogProbs: [-1] })).toThrow('expected 2, one for each of responseIds, found 1');
    expect(() => new Step({ ...right, rolloutLogProbs: [1, 2] })).toThrow('up to 0');
  });
});
