/** One execution of a flow: a new instance, its fields, its number of steps. */
import { describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { copyConfig } from '../core/json.ts';
import type { FlowFields, RegisteredFlow } from './flow-types.ts';
import type { GatewayDoor, SamplingParams } from './gateway-client.ts';

export interface Episode {
  readonly flow: RegisteredFlow;
  readonly door: GatewayDoor;
  readonly samplingParams: SamplingParams;
  readonly fields: FlowFields;
}

/** What `run` says; throws WORKFLOW_BAD_RESULT where that is no number of steps. */
export async function runEpisode({ flow, door, samplingParams, fields }: Episode): Promise<number> {
  const instance = new flow.flow({ config: copyConfig(flow.config) as never, door });
  const steps: unknown = await instance.run(samplingParams, fields);
  if (typeof steps === 'number' && Number.isSafeInteger(steps) && steps >= 0) return steps;
  throw new TrainyardError(
    'WORKFLOW_BAD_RESULT',
    `${flow.flow.name}.run returned ${describeValue(steps)}, expected the number of steps`,
    {
      hint: 'return how many steps were submitted, for example 1',
    },
  );
}
