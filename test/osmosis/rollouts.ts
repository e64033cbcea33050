/** Rollouts of what a module exports, through the real gateway, runner and grader, with a scripted engine in the policy's place. */
import type { Workflow } from '../../src/core/contracts.ts';
import { asGrader, asWorkflow, moduleOf } from '../../src/core/lower.ts';
import type { Task, Trajectory } from '../../src/core/types.ts';
import { Gateway } from '../../src/gateway/gateway.ts';
import { inlineGrader } from '../../src/grader/inline.ts';
import { graderInput } from '../../src/grader/input.ts';
import { runRollout } from '../../src/rollout/runner.ts';
import { Slots } from '../../src/rollout/slots.ts';
import { memoryStore } from '../../src/store/memory.ts';
import { type ScriptedEngine, scriptedEngine } from '../../src/testing/scripted-engine.ts';
import { createRenderer } from '../../src/tokens/renderer.ts';
import { loadTokenizer } from '../../src/tokens/tokenizer.ts';

export const TASK: Task = { id: 't', prompt: [{ role: 'user', content: 'hello' }], answer: 'hi', metadata: { kind: 'greeting' } };

const tokenizer = await loadTokenizer(new URL('../../models/base', import.meta.url).pathname);
const renderer = createRenderer(tokenizer);

export interface Bench {
  readonly workflow: Workflow;
  readonly gateway: Gateway;
  readonly engine: ScriptedEngine;
  run(task?: Task): Promise<Trajectory>;
}

/** `say`: what the policy answers, by the number of the call. */
export async function bench(
  exports: object,
  say: (call: number) => string = (call) => `answer ${call}`,
  artifacts?: string,
): Promise<Bench> {
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
  const engine = scriptedEngine({
    vocabSize: 512,
    contextLength: 4096,
    reply: (_, call) => [...tokenizer.encodeRendered(`${say(call)}<|im_end|>`)],
  });
  const gateway = new Gateway({ engine, renderer, modelName: 'policy' });
  const slots = workflow.concurrency === undefined ? undefined : new Slots(workflow.concurrency);
  let n = 0;
  const run = (task: Task = TASK): Promise<Trajectory> =>
    runRollout(
      {
        workflow,
        slots,
        sessions: gateway,
        grader: grader && inlineGrader(grader),
        graderInput,
        store: memoryStore(),
        limits: { turns: 20, tokens: 2000, deadlineMs: 5000 },
        seed: 3,
        clock: { now: Date.now },
        artifacts,
        signal: new AbortController().signal,
      },
      {
        task,
        identity: { rolloutId: `r${n++}`, groupId: 'g', taskId: task.id, purpose: 'train' },
        sampling: { temperature: 1, topP: 1, topK: 0, maxTokens: 64 },
      },
    );
  return { workflow, gateway, engine, run };
}
