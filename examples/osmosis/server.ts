/**
 * An agent behind a rollout server: whoever trains a model somewhere else asks it for rollouts, and hears how they went by callbacks.
 *
 * The triage agent as an Osmosis workflow. Importing this file starts nothing, so that `trainyard train` and `trainyard eval` take it too;
 * run by itself it listens: `ROLLOUT_SERVER_TOKEN=… node examples/osmosis/server.ts`.
 */
import OpenAI from 'openai';
import {
  AgentWorkflow,
  AgentWorkflowConfig,
  type AgentWorkflowContext,
  ConcurrencyConfig,
  createRolloutServer,
  Grader,
  type GraderContext,
  LocalBackend,
} from 'trainyard/osmosis';

export class TriageConfig extends AgentWorkflowConfig {
  override name = 'triage';
  override concurrency = new ConcurrencyConfig({ maxConcurrent: 8 });
  question = 'Sort the message: billing, shipping, returns or repairs?';
}

export class TriageWorkflow extends AgentWorkflow<TriageConfig> {
  override async run(ctx: AgentWorkflowContext<TriageConfig>) {
    const { question } = ctx.config ?? new TriageConfig();
    const model = ctx.model();
    await new OpenAI(model.openai()).chat.completions.create(
      { model: model.name, messages: [{ role: 'system', content: question }, ...ctx.prompt] },
      { signal: ctx.signal },
    );
  }
}

/** 1 for the right queue, which is the last word. */
export class QueueGrader extends Grader {
  override async grade(ctx: GraderContext) {
    for (const [id, { messages }] of Object.entries(ctx.samples)) {
      const queue = messages.at(-1)?.content?.match(/\w+$/)?.[0];
      ctx.setSampleReward(id, queue === ctx.label ? 1 : 0);
    }
  }
}

export const workflowConfig = new TriageConfig();

const backend = new LocalBackend({ workflow: TriageWorkflow, workflowConfig, grader: QueueGrader });
export const server = createRolloutServer({ backend, token: process.env['ROLLOUT_SERVER_TOKEN'] });

if (import.meta.main) {
  const { origin } = await server.listen({ port: Number(process.env['PORT'] ?? 0) });
  process.stdout.write(`listening at ${origin}\n`);
  process.once('SIGTERM', () => void server[Symbol.asyncDispose]());
  process.once('SIGINT', () => void server[Symbol.asyncDispose]());
}
