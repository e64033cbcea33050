/** Rollouts of what a module exports, through the real gateway, runner and grader, with a scripted engine in the policy's place. */
import type { ScriptedEngine } from '../../packages/testing/src/trajectories.ts';
import { Semaphore } from '../../src/core/async.ts';
import type { Workflow } from '../../src/core/contracts.ts';
import { asGrader, asWorkflow, moduleOf } from '../../src/core/define.ts';
import type { Task, Trajectory } from '../../src/core/types.ts';
import type { Gateway } from '../../src/gateway/gateway.ts';
import {
  AgentWorkflow,
  type AgentWorkflowConfig,
  type AgentWorkflowContext,
  type AgentWorkflowReturn,
  Grader,
  type GraderContext,
} from '../../src/osmosis.ts';
import { rolloutsThrough, type Says, scriptedGateway } from '../fixtures/scripted-gateway.ts';

export const TASK: Task = { id: 't', prompt: [{ role: 'user', content: 'hello' }], answer: 'hi', metadata: { kind: 'greeting' } };

export class AlwaysRight extends Grader {
  async grade(ctx: GraderContext): Promise<void> {
    for (const id of Object.keys(ctx.getSamples())) ctx.setSampleReward(id, 1);
  }
}

/** A workflow that does as it is told. */
export function doing<TConfig = AgentWorkflowConfig>(run: (ctx: AgentWorkflowContext<TConfig>) => Promise<AgentWorkflowReturn>) {
  return class Told extends AgentWorkflow<TConfig> {
    override async run(ctx: AgentWorkflowContext<TConfig>): Promise<AgentWorkflowReturn> {
      return run(ctx);
    }
  };
}

export interface Bench {
  readonly workflow: Workflow;
  readonly gateway: Gateway;
  readonly engine: ScriptedEngine;
  run(task?: Task): Promise<Trajectory>;
}

/** `say`: what the policy answers, by the number of the call. */
export async function bench(exports: object, say?: Says, artifacts?: string): Promise<Bench> {
  const module = moduleOf(exports);
  const [workflow] = Object.values(exports).flatMap((value) => asWorkflow(value, module) ?? []) as [Workflow];
  const [grader] = Object.values(exports).flatMap((value) => asGrader(value, module) ?? []);
  const { engine, gateway } = scriptedGateway(say);
  const concurrency = workflow.concurrency === undefined ? undefined : new Semaphore(workflow.concurrency);
  const through = rolloutsThrough(gateway);
  const run = (task: Task = TASK): Promise<Trajectory> =>
    through({ workflow, grader, concurrency, artifacts, limits: { deadlineMs: 5000 } }, task);
  return { workflow, gateway, engine, run };
}

/** One rollout of a workflow that does this, with a grader that gives 1. */
export async function rollout(
  run: (ctx: AgentWorkflowContext) => Promise<AgentWorkflowReturn>,
  say?: Says,
  task?: Task,
): Promise<Trajectory> {
  return await (await bench({ W: doing(run), AlwaysRight }, say)).run(task);
}

/** What such a workflow gives the run, in place of what it returned. */
export async function loweredResult(run: (ctx: AgentWorkflowContext) => Promise<AgentWorkflowReturn>): Promise<unknown> {
  const W = doing(run);
  const workflow = asWorkflow(W, moduleOf({ W }))!;
  let returned: unknown;
  const seen = { ...workflow, run: async (ctx: never) => (returned = await workflow.run(ctx)) };
  const { grade } = await (await bench({ seen, AlwaysRight })).run();
  if (grade.kind !== 'graded') throw new Error(`the rollout was not graded: ${JSON.stringify(grade)}`);
  return returned;
}
