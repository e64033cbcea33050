/** What the pool of groups does not take, in the words of these routes. */
import { NotTaken, OtherChannel } from '../rollout/group-pool.ts';
import { FlowRefusal } from './refusals.ts';

/** Undefined for any other error. */
export function refusalOf(thrown: unknown): FlowRefusal | undefined {
  if (thrown instanceof OtherChannel) {
    return new FlowRefusal('batch_conflict', thrown.message, { hint: 'name batches of each channel apart', param: 'batch_id' });
  }
  if (!(thrown instanceof NotTaken)) return undefined;
  return thrown.why === 'late'
    ? new FlowRefusal('group_closed', thrown.message, {
        hint: 'it comes too late and is not kept; use a new prompt_uid',
        param: 'prompt_uid',
      })
    : new FlowRefusal('pool_full', thrown.message, { hint: 'send it again when groups were fetched' });
}

export function admitted(admit: () => void): void {
  try {
    admit();
  } catch (thrown) {
    throw refusalOf(thrown) ?? thrown;
  }
}
