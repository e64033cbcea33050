/**
 * An agent without a base class: any object with an async `run`. Its client is built from what it is given, and shares one HTTP client with
 * all other rollouts.
 *
 *   npm run trainyard -- train examples/areal/agent.ts --tasks examples/triage/train.jsonl --held-out examples/triage/held-out.jsonl
 */
import OpenAI from 'openai';
import { defineGrader } from 'trainyard';
import { type AgentExtras, agentWorkflow, type EpisodeData } from 'trainyard/areal';

class MyAgentWorkflow {
  async run(data: EpisodeData, { baseURL, apiKey, httpClient, model, signal }: AgentExtras): Promise<void> {
    const client = new OpenAI({ baseURL, apiKey, fetch: httpClient, maxRetries: 0 });
    await client.chat.completions.create(
      {
        model,
        messages: [{ role: 'system', content: 'Sort the message: billing, shipping, returns or repairs?' }, ...data.messages],
      },
      { signal },
    );
    // Returning a number would be the reward, null would reject the rollout. Nothing leaves it to the grader, who knows the answer.
  }
}

export default agentWorkflow(MyAgentWorkflow, {
  // A group that is always right or always wrong teaches nothing.
  shouldAccept: ({ rewards }) => rewards.includes(0) && rewards.includes(1),
});

/** 1 for the right queue. */
export const grader = defineGrader(({ task, messages }) =>
  messages.at(-1)?.content?.match(/\w+$/)?.[0] === task.answer ? 1 : 0,
);
