/**
 * Two agents, two samples: each is graded by itself, and compared with the same agent in the other rollouts of its group.
 * The grader has a config too. A second opinion that only repeats the first is taken out of training.
 */
import {
  AgentWorkflow,
  type AgentWorkflowContext,
  ConcurrencyConfig,
  Grader,
  GraderConfig,
  type GraderContext,
} from 'trainyard/osmosis';
import { OsmosisRolloutModel, OsmosisStrandsAgent } from 'trainyard/osmosis/strands';

const model = new OsmosisRolloutModel();

export class TwoOpinions extends AgentWorkflow {
  async run(ctx: AgentWorkflowContext): Promise<void> {
    const opinion = (name: string) =>
      new OsmosisStrandsAgent({
        name,
        model,
        systemPrompt: 'Sort the message: billing, shipping, returns or repairs?',
        messages: ctx.prompt,
      });
    await Promise.all([opinion('first').invoke(), opinion('second').invoke()]);
  }
}

class OpinionGraderConfig extends GraderConfig {
  override name = 'opinions';
  override concurrency = new ConcurrencyConfig({ maxConcurrent: 2 });
  wrong = 0;
}

export const opinionGraderConfig = new OpinionGraderConfig();

export class OpinionGrader extends Grader<OpinionGraderConfig> {
  async grade(ctx: GraderContext<OpinionGraderConfig>): Promise<void> {
    const { first, second } = ctx.getSamples();
    for (const sample of [first, second]) {
      const said = sample?.messages.at(-1)?.content ?? '';
      if (sample) sample.reward = said.match(/\w+$/)?.[0] === ctx.label ? 1 : (ctx.config?.wrong ?? 0);
    }
    if (second) second.removeSample = second.messages.at(-1)?.content === first?.messages.at(-1)?.content;
  }
}
