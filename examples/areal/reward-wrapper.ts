/**
 * A reward that costs a lot is computed in processes of its own. The wrapper is made once, in the constructor: there is one instance of the
 * workflow in a process, however many rollouts it runs.
 *
 *   npm run trainyard -- train examples/areal/reward-wrapper.ts --tasks examples/triage/train.jsonl --held-out examples/triage/held-out.jsonl
 */
import {
  type AsyncReward,
  AsyncRewardWrapper,
  type EpisodeData,
  type EpisodeResult,
  episodeSample,
  type InferenceEngine,
  RolloutWorkflow,
} from 'trainyard/areal';

const INSTRUCTIONS = { role: 'system', content: 'Sort the message: billing, shipping, returns or repairs?' } as const;

/** What the rows hold besides prompt and answer: what happened to the customer, which is not what the customer wants. */
interface Ticket {
  readonly happened: string;
}

/** Half for naming a queue at all, half for not falling for what happened. Any amount of work could be done here. */
export function queueReward(_prompt: string, completion: string, { metadata }: EpisodeData<Ticket>): number {
  const queue = /(billing|shipping|returns|repairs)$/.exec(completion)?.[1];
  if (queue === undefined) return 0;
  return queue === metadata.happened ? 0.5 : 1;
}

export default class RewardedWorkflow extends RolloutWorkflow<Ticket> {
  readonly #asyncRewardFn: AsyncReward<typeof queueReward>;

  constructor() {
    super();
    this.#asyncRewardFn = new AsyncRewardWrapper({ module: import.meta.url, exportName: 'queueReward' }, { maxWorkers: 1 });
  }

  override async arunEpisode(engine: InferenceEngine, data: EpisodeData<Ticket>): Promise<EpisodeResult> {
    const messages = [INSTRUCTIONS, ...data.messages];
    const response = await engine.agenerate({ inputIds: engine.applyChatTemplate(messages) });
    const reward = await this.#asyncRewardFn(messages.map(({ content }) => content).join('\n'), response.text, data);
    return episodeSample(response, reward);
  }
}
