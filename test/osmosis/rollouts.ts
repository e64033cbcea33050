/** Rollouts of what a module exports, through the real gateway, runner and grader, with a scripted engine in the policy's place. */

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
import type { ScriptedEngine } from '../../src/testing/trajectories.ts';
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
  const found = <T>(lower: (value: unknown) => T | undefined): T | undefined => {
    for (const value of Object.values(exports)) {
      const one = lower(value);
      if (one !== undefined) return one;
    }
    return undefined;
  };
  const workflow = found((value) => asWorkflow(value, module))!;
  const grader = found((value) => asGrader(value, module));
  const { engine, gateway } = scriptedGateway(say);
  const concurrency = workflow.concurrency === undefined ? undefined : new Semaphore(workflow.concurrency);
  const through = rolloutsThrough(gateway);
  const run = (task: Task = TASK): Promise<Trajectory> =>
    through({ workflow, grader, concurrency, artifacts, limits: { deadlineMs: 5000 } }, task);
  return { workflow, gateway, engine, run };
}
