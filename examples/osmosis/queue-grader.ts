/** The grader of the triage examples: 1 for each agent whose last word is the right queue, else 0. */
import { Grader, type GraderContext } from 'trainyard/osmosis';

export class RightQueue extends Grader {
  async grade(ctx: GraderContext): Promise<void> {
    for (const { id, messages } of Object.values(ctx.getSamples())) {
      const queue = messages.at(-1)?.content?.match(/\w+$/)?.[0];
      ctx.setSampleReward(id, queue === ctx.label ? 1 : 0);
    }
  }
}
