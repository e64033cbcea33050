/**
 * A black box that is any program: started for each rollout with base URL and key in its environment, as stock clients look for them,
 * and with the task's fields as JSON on its standard input. Ended at its deadline, beyond its memory, and with the rollout.
 *
 * What it prints is not looked at: a reward is for a grader to give.
 */
import { TrainyardError } from '../core/errors.ts';
import { type AgentProcessEnd, agentEnvironment, runAgentProcess } from '../processes/agent-process.ts';
import { type BlackBoxAgent, BlackBoxAgentFlowBase } from './black-box-flow.ts';
import type { FlowFields } from './flow-types.ts';

const DEADLINE_MS = 600_000;
const SHOWN = 500;

export abstract class ProcessAgentFlow<Config = unknown, Row extends object = Record<never, never>> extends BlackBoxAgentFlowBase<
  Config,
  Row
> {
  static override readonly abstract: boolean = true;
  /** The program and its arguments. */
  abstract readonly command: readonly [string, ...string[]];
  readonly deadlineMs: number = DEADLINE_MS;
  /** Of the program and whatever it starts; absent: no limit but the system's. */
  readonly memoryMb?: number;
  /** Absent: an empty folder of its own, as its home and its temporary folder are. */
  readonly cwd?: string;
  /** Added to its environment. */
  readonly env: Readonly<Record<string, string>> = {};
  /** Names of variables of the run's environment that it gets too. */
  readonly inheritEnv: readonly string[] = [];

  async _runAgent(baseURL: string, fields: FlowFields<Row>, { apiKey, signal }: BlackBoxAgent): Promise<void> {
    const [command, ...args] = this.command;
    const { memoryMb, cwd, deadlineMs, inheritEnv } = this;
    const { end, stderr } = await runAgentProcess({
      command,
      args,
      env: { ...this.env, ...agentEnvironment({ baseURL, apiKey }) },
      inheritEnv,
      input: JSON.stringify(fields),
      signal,
      deadlineMs,
      ...(memoryMb === undefined ? {} : { memoryMb }),
      ...(cwd === undefined ? {} : { cwd }),
    });
    if (end.kind === 'exited' && end.code === 0) return;
    const said = stderr.trim().slice(-SHOWN);
    throw new TrainyardError('WORKFLOW_FAILED', `the agent ${command} ${inWords(end)}${said === '' ? '' : `: ${said}`}`);
  }
}

function inWords(end: AgentProcessEnd): string {
  switch (end.kind) {
    case 'exited':
      return `exited with ${end.code}`;
    case 'killed':
      return `was killed by ${end.signal}`;
    case 'deadline':
      return `did not end within ${end.deadlineMs} ms`;
    case 'memory':
      return `used ${end.residentMb} MB; it may use ${end.limitMb}`;
    case 'cancelled':
      return 'was ended with its rollout';
    case 'unstartable':
      return `cannot be started: ${end.message}`;
  }
}
