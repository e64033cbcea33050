/**
 * A flow as core's workflow. Each rollout has an instance of its own; a row's `agent_name` chooses another flow than the default.
 *
 * What the flow submitted decides: the steps are what is trained, their rewards what they earned. Where it gave none the grader does.
 */
import { methodKind } from '../core/classes.ts';
import { type WorkflowContext, type WorkflowResult, workflowSymbol } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { type FlowDoor, type FlowWorkflow, flowSymbol } from '../core/flow-door.ts';
import { isObject } from '../core/json.ts';
import type { Json } from '../core/types.ts';
import { runEpisode } from './episode.ts';
import type { FlowRegistry } from './flow-registry.ts';
import type { FlowFields, RegisteredFlow } from './flow-types.ts';
import { submitted } from './gateway-client.ts';

/** Throws WORKFLOW_NOT_ASYNC. */
export function flowWorkflow(chosen: RegisteredFlow, registry: FlowRegistry): FlowWorkflow {
  const kind = methodKind(chosen.flow, 'run');
  if (kind !== 'AsyncFunction') {
    throw new TrainyardError('WORKFLOW_NOT_ASYNC', `run of flow ${chosen.name} is a ${kind}, expected an async method`, {
      hint: 'write async run(samplingParams, fields) { … }',
    });
  }
  const run = async (ctx: WorkflowContext, door?: FlowDoor): Promise<WorkflowResult> => {
    if (door === undefined) {
      throw new TrainyardError('NO_ROLLOUT', `the flow ${chosen.name} needs the gateway's flow routes, which are not here`, {
        hint: 'run it with trainyard train or eval',
      });
    }
    const name = agentNameOf(ctx.metadata);
    const flow = name === undefined || name === chosen.name ? chosen : registry.flow(name);
    const { sampling } = door;
    const own = { url: door.url, key: door.key, fetch: door.fetch, signal: ctx.signal };
    const said = await runEpisode({ flow, door: own, samplingParams: { ...sampling }, fields: fieldsOf(ctx) });
    const { steps, output, trainedTurns, reward, metadata } = await submitted(own, ctx.rolloutId, ctx.groupId);
    if (said !== steps) ctx.log(`${flow.name} returned ${said} steps; the gateway has ${steps}`);
    return {
      ...(output === undefined ? {} : { output }),
      ...(trainedTurns === undefined ? {} : { trainedTurns }),
      ...(reward === undefined ? {} : { reward }),
      ...(metadata === undefined ? {} : { metadata }),
      metrics: { steps },
    };
  };
  return {
    [workflowSymbol]: true,
    [flowSymbol]: true,
    name: chosen.name,
    roles: {},
    isolation: 'none',
    grading: 'when-missing',
    run,
  };
}

/** Of a row's metadata. */
export function agentNameOf(metadata: Json | undefined): string | undefined {
  const name = isObject(metadata) ? metadata['agent_name'] : undefined;
  return typeof name === 'string' ? name : undefined;
}

function fieldsOf({ metadata, rolloutId, groupId, prompt, purpose }: WorkflowContext): FlowFields {
  const row = isObject(metadata) ? metadata : {};
  return {
    ...row,
    trajectoryUid: rolloutId,
    promptUid: groupId,
    rawPrompt: prompt.findLast(({ role }) => role === 'user')?.content ?? prompt.at(-1)?.content ?? '',
    prompt,
    channel: purpose === 'eval' ? 'val' : 'train',
  } as FlowFields;
}
