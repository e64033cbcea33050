/**
 * `agentWorkflow`: turns any agent with an async `run(data, { baseURL, apiKey, httpClient })` into a workflow. The agent is a class, an
 * instance or a function, without a base class. Its calls under the base URL are recorded; its return value is its reward.
 */
import type { Workflow, WorkflowResult } from '../../core/contracts.ts';
import { isClass, processOf } from '../../core/define.ts';
import { checkNames, describeValue, kindOf } from '../../core/describe.ts';
import { TrainyardError } from '../../core/errors.ts';
import { defined } from '../../core/json.ts';
import { type Credit, checkCredit } from '../../core/reward.ts';
import type { Json } from '../../core/types.ts';
import {
  arealWorkflow,
  badReturn,
  type EpisodeData,
  type EpisodeGroup,
  entriesOf,
  episodeData,
  getHttpClient,
  type HttpClient,
  resultOfRewards,
  takesArguments,
} from './episode.ts';

export interface AgentExtras {
  readonly baseURL: string;
  readonly apiKey: string;
  /** A `fetch` shared by all rollouts: `new OpenAI({ baseURL, apiKey, fetch: httpClient, maxRetries: 0 })`. */
  readonly httpClient: HttpClient;
  readonly model: string;
  readonly signal: AbortSignal;
}

/**
 * A number: the rollout's reward. A map: rewards by completion id; others get none. Null rejects the rollout; undefined: the grader
 * decides.
 */
// biome-ignore lint/suspicious/noConfusingVoidType: an agent that returns nothing leaves the reward to the grader
export type AgentReward = number | Readonly<Record<string, number>> | ReadonlyMap<string, number> | null | undefined | void;

type Run<Metadata> = (data: EpisodeData<Metadata>, extras: AgentExtras) => Promise<AgentReward>;
export type Agent<Metadata = Json | undefined> = { run: Run<Metadata> } | (new () => { run: Run<Metadata> }) | Run<Metadata>;

export interface AgentOptions {
  readonly name?: string;
  /** From 0 to 1: the share of a completion's reward that is added to the completion before it in its branch. Default 1. */
  readonly turnDiscount?: number;
  /** `individual`: each completion keeps its own reward. `concat`: all completions of a row get its last one's. Default individual. */
  readonly export?: 'individual' | 'concat';
  readonly shouldAccept?: (group: EpisodeGroup) => boolean;
  /** Runs each rollout in its own process, with OPENAI_BASE_URL, OPENAI_API_KEY and Anthropic's counterparts in its environment. */
  readonly isolation?: 'process';
  /** Names of environment variables that such a process inherits. */
  readonly env?: readonly string[];
  /** Paths that such a process cannot read, from the entry's folder; a name may hold `*`. */
  readonly hidden?: readonly string[];
  /** The most rollouts at once. Absent: the run's own limit. */
  readonly concurrency?: number;
}

const OPTIONS = ['name', 'turnDiscount', 'export', 'shouldAccept', 'isolation', 'env', 'hidden', 'concurrency'];

export function agentWorkflow<Metadata = Json | undefined>(agent: Agent<Metadata>, options: AgentOptions = {}): Workflow {
  const { name, make } = partsOf(agent as Agent<never>);
  checkNames(options, OPTIONS, 'agentWorkflow', 'WORKFLOW_INVALID');
  const { shouldAccept, concurrency } = options;
  const credit = creditOf(options);
  return arealWorkflow({
    name: options.name || name || 'agent',
    settings: { ...processOf(options), ...defined({ concurrency }) },
    make,
    shouldAccept,
    run: async (agentRun, ctx) => {
      const { baseURL, apiKey, name: model } = ctx.model();
      const extras = { baseURL, apiKey, httpClient: getHttpClient(), model, signal: ctx.signal };
      const result = resultOf(await agentRun(episodeData(ctx), extras));
      return result && { ...result, credit };
    },
  });
}

function resultOf(returned: unknown): WorkflowResult | null {
  if (returned === null) return null;
  if (returned === undefined) return {};
  if (typeof returned === 'number' && Number.isFinite(returned)) return { reward: returned };
  const entries = entriesOf(returned);
  if (entries !== undefined) return resultOfRewards(entries, 'run');
  const hint = 'return a finite number, a map of completion id to reward, or null to reject the rollout';
  throw badReturn(`run returned ${describeValue(returned)}`, hint);
}

function creditOf({ turnDiscount = 1, export: style = 'individual' }: AgentOptions): Credit {
  if (style !== 'individual' && style !== 'concat') {
    throw new TrainyardError('WORKFLOW_INVALID', `export is ${describeValue(style)}, expected "individual" or "concat"`);
  }
  const credit: Credit = { turnDiscount, per: style === 'concat' ? 'row' : 'turn' };
  checkCredit(credit);
  return credit;
}

function partsOf(agent: Agent<never> | undefined | null) {
  if (typeof agent === 'function' && isClass(agent)) {
    const Class = agent as new () => { run: Run<never> };
    checkRun(Class.prototype?.run, `the class ${Class.name || 'without a name'}`);
    if (Class.length > 0) throw takesArguments(Class.name, `mark an instance: agentWorkflow(new ${Class.name}(…))`);
    return { name: Class.name, make: () => runOf(new Class()) };
  }
  if (typeof agent === 'function') {
    checkRun(agent, `the function ${agent.name || 'without a name'}`);
    return { name: agent.name, make: () => agent as Run<never> };
  }
  const named = agent?.constructor?.name ?? '';
  const name = named === 'Object' ? '' : named;
  checkRun(agent?.run, name === '' ? 'the agent' : `the class ${name}`);
  return { name, make: () => runOf(agent!) };
}

function runOf(instance: { run: Run<never> }): Run<never> {
  return (data, extras) => instance.run(data, extras);
}

function checkRun(run: unknown, whose: string): void {
  const kind = kindOf(run);
  if (kind === 'AsyncFunction') return;
  const ofMethod = run === undefined ? `${whose} has no run` : `run of ${whose} is a ${kind}`;
  const found = whose.startsWith('the function') ? `${whose} is not async` : ofMethod;
  throw new TrainyardError(
    'WORKFLOW_NOT_ASYNC',
    `${found}, expected an async run(data, extras)`,
    'write async run(data, { baseURL, apiKey, httpClient }) { … } and await what it calls',
  );
}
