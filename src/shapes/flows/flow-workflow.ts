/**
 * Lowers a flow to a core workflow, which mounts the flow routes on its run's gateway. Each rollout gets its own flow instance and key. A
 * row's `agent_name` can choose another flow. The submitted steps are trained with their rewards; without rewards, the grader decides. An
 * isolated flow speaks to the same routes over HTTP: its process gets the flow's key, and what it did is read from the gateway's record.
 */
import {
  type GraderResult,
  type Workflow,
  type WorkflowContext,
  type WorkflowResult,
  workflowSymbol,
} from '../../core/contracts.ts';
import { methodKind, processOf } from '../../core/define.ts';
import { checkedFields, describeValue, refusing } from '../../core/describe.ts';
import { TrainyardError } from '../../core/errors.ts';
import { copyConfig, defined, isObject } from '../../core/json.ts';
import type { Json, PromptMessage, TaskView } from '../../core/types.ts';
import type { FlowFields, FlowRegistry, RegisteredFlow } from './flow-registry.ts';
import type { FlowTrajectory } from './flow-trajectory.ts';
import { type GatewayDoor, type SamplingParams, zeroSubmittedAt } from './gateway-client.ts';

export interface FlowDoor extends GatewayDoor {
  readonly sampling: SamplingParams;
  submitted(): FlowTrajectory;
}

/** Throws WORKFLOW_NOT_ASYNC. */
export function flowWorkflow(chosen: RegisteredFlow, registry: FlowRegistry): Workflow {
  const kind = methodKind(chosen.flow, 'run');
  if (kind !== 'AsyncFunction') {
    throw new TrainyardError(
      'WORKFLOW_NOT_ASYNC',
      `run of flow ${chosen.name} is a ${kind}, expected an async method`,
      'write async run(samplingParams, fields) { … }',
    );
  }
  const flowFor = ({ metadata }: WorkflowContext): RegisteredFlow => {
    const name = agentNameOf(metadata);
    return name === undefined || name === chosen.name ? chosen : registry.flow(name);
  };
  return {
    [workflowSymbol]: true,
    name: chosen.name,
    roles: {},
    ...processOf(chosen.flow),
    grading: 'when-missing',
    rewardsAreReturns: true,
    checkTasks(tasks) {
      const problems = problemsOf(tasks, new Set([chosen.name, ...registry.names]));
      return problems.length > 0 || this.isolation === 'process' ? problems : unisolated(tasks, chosen, registry);
    },
    attach: async (host) => {
      const { attachTo } = await import('./flow-routes.ts');
      const doorOf = attachTo(host);
      return async (ctx, task, apart) => {
        const door = doorOf(ctx, task);
        const { url, key, sampling } = door;
        const said = apart === undefined ? await runFlow(flowFor(ctx), ctx, door) : await apart({ url, key, sampling });
        return resultOf(flowFor(ctx), said, ctx, door);
      };
    },
    run: async (ctx, handed) => {
      if (isObject(handed))
        return await runFlow(flowFor(ctx), ctx, { ...(handed as unknown as Handed), fetch, signal: ctx.signal });
      throw new TrainyardError(
        'NO_ROLLOUT',
        `the flow ${chosen.name} needs the gateway's flow routes, which are not here`,
        'run it with trainyard train or eval',
      );
    },
  };
}

type Handed = Pick<FlowDoor, 'url' | 'key' | 'sampling'>;

async function runFlow(flow: RegisteredFlow, ctx: WorkflowContext, door: GatewayDoor & Handed): Promise<number> {
  const { rolloutId, groupId, metadata: row, prompt, purpose } = ctx;
  const fields = flowFields(isObject(row) ? row : {}, {
    trajectoryUid: rolloutId,
    promptUid: groupId,
    prompt,
    channel: purpose === 'eval' ? 'val' : 'train',
  });
  const steps = await runEpisode(flow, door, { ...door.sampling }, fields);
  const place = zeroSubmittedAt(door);
  if (place !== undefined) ctx.log(`${flow.name} submitted reward 0 ${place}; leave it out where the grader decides`);
  return steps;
}

/** The gateway's record decides what happened, whatever the flow returned. */
function resultOf(flow: RegisteredFlow, said: unknown, ctx: WorkflowContext, door: FlowDoor): WorkflowResult {
  const { stepCount: steps, output, trainedTurns, reward, saidOfItself: metadata, session } = door.submitted();
  if (steps === 0 && session.turns.length > 0) ctx.log(`${flow.name} submitted no step, so nothing that it generated is trained`);
  if (said !== steps) ctx.log(`${flow.name} returned ${describeValue(said)} steps; the gateway has ${steps}`);
  const earned = reward === undefined ? undefined : defined({ value: reward.value, byTurn: reward.byTurn });
  return { ...defined({ output, trainedTurns, reward: earned as GraderResult | undefined, metadata }), metrics: { steps } };
}

/** What flows override. In another spelling it would have no effect. */
const OVERRIDDEN = ['_runAgent', 'executeTool', 'isTerminal', 'maxSteps', 'messagesOf', 'systemPrompt', 'toolSchemas'];

/** Runs a flow once, on a new instance. Throws WORKFLOW_BAD_RESULT if `run` does not return a number of steps. */
export async function runEpisode(
  { flow, config }: RegisteredFlow,
  door: GatewayDoor,
  samplingParams: SamplingParams,
  fields: FlowFields,
): Promise<number> {
  const instance = checkedFields(new flow({ config: copyConfig(config) as never, door }), OVERRIDDEN);
  processOf(flow, instance);
  const steps: unknown = await instance.run(samplingParams, fields);
  if (typeof steps === 'number' && Number.isSafeInteger(steps) && steps >= 0) return steps;
  const found = `${flow.name}.run returned ${describeValue(steps)}, expected the number of steps`;
  throw new TrainyardError('WORKFLOW_BAD_RESULT', found, 'return how many steps were submitted, for example 1');
}

export function flowFields(row: object, own: Omit<FlowFields<object>, 'rawPrompt'>): FlowFields {
  const fields = { ...row, ...own, rawPrompt: textOf(own.prompt) } as FlowFields;
  return refusing(
    fields,
    'fields',
    ['trajectoryUid', 'promptUid', 'rawPrompt'],
    'gatewayComputeReward asks the grader, which does',
  );
}

function textOf(prompt: readonly PromptMessage[]): string {
  return prompt.findLast(({ role }) => role === 'user')?.content ?? prompt.at(-1)?.content ?? '';
}

/** Errors for tasks whose `agent_name` is not a string or not in `names`. */
function problemsOf(tasks: readonly TaskView[], names: ReadonlySet<string>): readonly TrainyardError[] {
  const strange = tasks.find(
    ({ metadata }) => agentNameOf(metadata) === undefined && isObject(metadata) && 'agent_name' in metadata,
  );
  const asked = new Set(tasks.flatMap(({ metadata }) => agentNameOf(metadata) ?? []));
  const unknown = [...asked].filter((name) => !names.has(name));
  return [
    ...(strange === undefined ? [] : [`the agent_name of task ${strange.id} is no text`]),
    ...(unknown.length === 0
      ? []
      : [`tasks ask for the flows ${unknown.join(', ')} by agent_name; there are ${[...names].join(', ')}`]),
  ].map((message) => new TrainyardError('DATASET_INVALID', message, 'register them, or list them in the flows file'));
}

/** Whoever asks for a flow by name must not lose its isolation: one setting holds for the whole run. */
function unisolated(tasks: readonly TaskView[], { name }: RegisteredFlow, registry: FlowRegistry): readonly TrainyardError[] {
  const asked = new Set(tasks.flatMap(({ metadata }) => agentNameOf(metadata) ?? name));
  const lost = [...asked].find((other) => other !== name && processOf(registry.flow(other).flow).isolation === 'process');
  if (lost === undefined) return [];
  const found = `the flow ${lost}, which tasks ask for by agent_name, says isolation 'process', and the run of ${name} has none`;
  return [new TrainyardError('WORKFLOW_INVALID', found, 'start the run with --isolation process')];
}

function agentNameOf(metadata: Json | undefined): string | undefined {
  const name = isObject(metadata) ? metadata['agent_name'] : undefined;
  return typeof name === 'string' ? name : undefined;
}
