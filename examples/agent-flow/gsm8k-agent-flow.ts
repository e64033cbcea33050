/**
 * A black-box flow: the agent knows nothing of training. It has a base URL and the official OpenAI client, and works out small sums with
 * a calculator until it has an answer. Run by name, from the list in flows.yaml:
 *
 *     trainyard train --flow blackbox_gsm8k_agent --flows examples/agent-flow/flows.yaml --tasks examples/shop/train.jsonl
 */
import OpenAI from 'openai';
import type { ChatCompletionMessageParam, ChatCompletionTool } from 'openai/resources/chat/completions';
import { type BlackBoxAgent, BlackBoxAgentFlowBase, type FlowFields } from 'trainyard/agent-flow';
import { SYSTEM_PROMPT, shopTools } from './shop.ts';

export { grader } from './shop.ts';

interface Config {
  readonly maxTurns: number;
}

export class BlackBoxGSM8KAgentFlow extends BlackBoxAgentFlowBase<Config> {
  override async _runAgent(baseURL: string, fields: FlowFields, { apiKey, signal }: BlackBoxAgent): Promise<void> {
    const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
    await solve(client, fields.rawPrompt, this.config?.maxTurns ?? 4, signal);
  }
}

/** The agent itself, as it would be without any of this. */
export async function solve(client: OpenAI, question: string, maxTurns: number, signal?: AbortSignal): Promise<void> {
  const tools = Object.entries(shopTools).map(
    ([name, { description, parameters }]) =>
      ({ type: 'function', function: { name, description, parameters } }) as ChatCompletionTool,
  );
  const messages: ChatCompletionMessageParam[] = [
    { role: 'system', content: SYSTEM_PROMPT },
    { role: 'user', content: question },
  ];
  for (let turn = 0; turn < maxTurns; turn++) {
    const completion = await client.chat.completions.create({ model: 'policy', messages, tools }, { signal });
    const reply = completion.choices[0]?.message;
    if (!reply?.tool_calls?.length) return;
    messages.push(reply);
    for (const call of reply.tool_calls) {
      if (call.type === 'function') messages.push({ role: 'tool', tool_call_id: call.id, content: run(call.function) });
    }
  }
}

function run({ name, arguments: given }: { name: string; arguments: string }): string {
  try {
    return JSON.stringify(shopTools[name]?.run(JSON.parse(given)) ?? { error: 'no such tool' });
  } catch {
    return JSON.stringify({ error: 'bad json' });
  }
}
