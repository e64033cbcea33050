/**
 * A black box in a process of its own, in any language: it finds the policy by the environment, as stock clients do, and its task on
 * standard input. Here it is a small program beside this file.
 *
 *     trainyard train --flow process_agent --flows examples/agent-flow/flows.yaml --tasks examples/triage/train.jsonl
 */
import { fileURLToPath } from 'node:url';
import { defineGrader } from 'trainyard';
import { ProcessAgentFlow } from 'trainyard/agent-flow';

export class ProgramAgentFlow extends ProcessAgentFlow {
  override readonly command = [
    process.execPath,
    fileURLToPath(new URL('./sorting-program.mjs', import.meta.url)),
  ] as const satisfies readonly [string, ...string[]];
  override readonly deadlineMs = 30_000;
  override readonly memoryMb = 512;
}

export const grader = defineGrader(({ task, output }) => (String(output).match(/\w+$/)?.[0] === task.answer ? 1 : 0));
