/**
 * `AgentWorkflow`: a class with an async `run(ctx)`, instantiated for each rollout. Exporting the class is enough: discovery lowers it to
 * core's workflow, with the one config that the module exports. `run` never sees the label.
 */
import {
  type EntryModule,
  type ModelHandle,
  type Workflow,
  type WorkflowContext,
  type WorkflowResult,
  workflowSymbol,
} from '../../core/contracts.ts';
import { processOf } from '../../core/define.ts';
import { describeValue } from '../../core/describe.ts';
import { TrainyardError } from '../../core/errors.ts';
import { defined } from '../../core/json.ts';
import type { Json, Message } from '../../core/types.ts';
import { type AgentWorkflowConfig, type ConfiguredClass, configured } from './class-config.ts';
import { RolloutContext } from './samples.ts';

export type Metadata = { readonly [key: string]: Json };

type OfRollout = 'prompt' | 'artifactsDir' | 'rolloutId' | 'purpose' | 'seed' | 'signal' | 'log' | 'reject';

export interface AgentWorkflowContext<TConfig = AgentWorkflowConfig> extends Pick<WorkflowContext, OfRollout> {
  /** This rollout's copy; null if the entry module exports no config. */
  readonly config: TConfig | null;
  readonly metadata: Metadata | null;
  /** The policy for use without a framework, with everything a stock client needs. Each of its threads is a sample. */
  model(): ModelHandle;
}

export interface AgentWorkflowOutput {
  /** The conversation to grade. Absent or null: the gateway's record. */
  readonly messages?: readonly Message[] | null;
  /** Finite numbers, for reports. */
  readonly metrics?: Readonly<Record<string, number>>;
  readonly info?: Readonly<Record<string, Json>>;
}

// biome-ignore lint/suspicious/noConfusingVoidType: a run without a return is the usual one
export type AgentWorkflowReturn = AgentWorkflowOutput | AgentWorkflowOutput['messages'] | undefined | void;

export abstract class AgentWorkflow<TConfig = AgentWorkflowConfig> {
  readonly config: TConfig | null;

  constructor(config: TConfig | null = null) {
    this.config = config;
  }

  abstract run(ctx: AgentWorkflowContext<TConfig>): Promise<AgentWorkflowReturn>;

  static readonly [workflowSymbol] = lower;
}

type WorkflowClass = ConfiguredClass<{ run(ctx: AgentWorkflowContext<unknown>): Promise<unknown> }>;

function lower(this: object, module: EntryModule): Workflow | undefined {
  const Class = this as WorkflowClass;
  const found = configured('workflow', Class, AgentWorkflow, module);
  if (found === undefined) return undefined;
  const { config, named } = found;
  return {
    [workflowSymbol]: true,
    ...named,
    roles: {},
    ...processOf(Class),
    grading: 'always',
    needsGrader: true,
    ...(config === undefined ? {} : { config }),
    run: async (ctx) => {
      const rollout = new RolloutContext({ model: ctx.model(), rolloutId: ctx.rolloutId });
      const returned = await rollout.run(async () => new Class(ctx.config ?? null).run(contextOf(ctx)));
      return await resultOf(returned, rollout);
    },
  };
}

function contextOf(ctx: WorkflowContext): AgentWorkflowContext<unknown> {
  const { prompt, config = null, rolloutId, purpose, seed, signal } = ctx;
  return {
    prompt,
    config,
    rolloutId,
    purpose,
    seed,
    signal,
    metadata: (ctx.metadata ?? null) as Metadata | null,
    get artifactsDir() {
      return ctx.artifactsDir;
    },
    log: (text) => ctx.log(text),
    reject: (reason) => ctx.reject(reason),
    model: () => ctx.model(),
  };
}

/** In core's terms: messages become the output, info the metadata, and samples the threads. */
async function resultOf(returned: unknown, rollout: RolloutContext): Promise<WorkflowResult> {
  const { messages, metrics, info } = outputOf(returned);
  const samples = Object.entries(await rollout.getSamples());
  const threads = Object.fromEntries(samples.map(([name, sample]) => [name, sample.messages]));
  const output = (messages ?? undefined) as readonly object[] | undefined as Json | undefined;
  return defined({ output, metrics, metadata: info, threads: samples.length === 0 ? undefined : threads });
}

const KEYS: readonly string[] = ['messages', 'metrics', 'info'];

/** Refuses anything else, so that nothing a workflow returns is silently lost. */
function outputOf(returned: unknown): AgentWorkflowOutput {
  if (returned === undefined || returned === null) return {};
  if (Array.isArray(returned)) return { messages: returned as Message[] };
  if (typeof returned !== 'object') throw bad(`got ${describeValue(returned)}`);
  const unknown = Object.keys(returned).filter((key) => !KEYS.includes(key));
  if (unknown.length > 0) throw bad(`got an object with ${unknown.join(', ')}`);
  const { messages, metrics } = returned as AgentWorkflowOutput;
  if (messages != null && !Array.isArray(messages)) throw bad(`got messages ${describeValue(messages)}`);
  const broken = Object.entries(metrics ?? {}).find(([, value]) => !Number.isFinite(value));
  if (broken !== undefined) throw bad(`got the metric ${describeValue(broken[0])} as ${describeValue(broken[1])}`);
  return returned;
}

function bad(found: string): TrainyardError {
  return new TrainyardError(
    'WORKFLOW_BAD_RESULT',
    `run() must return AgentWorkflowOutput ({ messages?, metrics?, info? }), a message list, or nothing; ${found}`,
    'rewards are given by the Grader',
  );
}
