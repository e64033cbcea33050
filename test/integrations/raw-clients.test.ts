/** The makers' own clients with what a model handle gives them: options for a constructor, whole answers and streams. */
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { rolloutFetch } from '../../src/index.ts';
import { expectLinear } from '../fixtures/gateway/served.ts';
import { inRollout, rollout } from '../fixtures/integrations/both-ways.ts';

const SAID = ['One.', 'Two.', 'Three.'];
const REPLIES = SAID.map((said) => `${said}<|im_end|>`);

/** One client for all rollouts, made when the module is loaded. */
const shared = {
  openai: new OpenAI({ apiKey: 'unused', fetch: rolloutFetch, maxRetries: 0 }),
  anthropic: new Anthropic({ apiKey: 'unused', fetch: rolloutFetch, maxRetries: 0 }),
};

type Ask = (messages: { role: 'user' | 'assistant'; content: string }[]) => Promise<string>;

const whole =
  (client: OpenAI): Ask =>
  async (messages) =>
    (await client.chat.completions.create({ model: 'policy', messages })).choices[0]?.message.content ?? '';

const streamed =
  (client: OpenAI): Ask =>
  async (messages) => {
    let text = '';
    for await (const chunk of await client.chat.completions.create({ model: 'policy', messages, stream: true })) {
      text += chunk.choices[0]?.delta.content ?? '';
    }
    return text;
  };

const textIn = ({ content }: Anthropic.Message): string =>
  content.map((block) => (block.type === 'text' ? block.text : '')).join('');
const wholeMessage =
  (client: Anthropic): Ask =>
  async (messages) =>
    textIn(await client.messages.create({ model: 'policy', max_tokens: 100, messages }));
const streamedMessage =
  (client: Anthropic): Ask =>
  async (messages) =>
    textIn(await client.messages.stream({ model: 'policy', max_tokens: 100, messages }).finalMessage());

describe('a conversation of three turns is recorded as one', () => {
  it.each<[string, () => Ask]>([
    ['openai, for the rollout', () => whole(new OpenAI(rolloutModel().openai()))],
    ['openai, for the rollout, streamed', () => streamed(new OpenAI(rolloutModel().openai()))],
    ['openai, shared', () => whole(shared.openai)],
    ['openai, shared, streamed', () => streamed(shared.openai)],
    ['anthropic, for the rollout', () => wholeMessage(new Anthropic(rolloutModel().anthropic()))],
    ['anthropic, for the rollout, streamed', () => streamedMessage(new Anthropic(rolloutModel().anthropic()))],
    ['anthropic, shared', () => wholeMessage(shared.anthropic)],
    ['anthropic, shared, streamed', () => streamedMessage(shared.anthropic)],
  ])('%s', async (_, askOf) => {
    const { session } = rollout(REPLIES);
    current = session;
    const ask = askOf();
    const messages: Parameters<Ask>[0] = [];
    await inRollout(session, async () => {
      for (const [i, said] of SAID.entries()) {
        messages.push({ role: 'user', content: `question ${i}` });
        const answer = await ask(messages);
        expect(answer).toBe(said);
        messages.push({ role: 'assistant', content: answer });
      }
    });
    const turns = session.seal();
    expect(turns).toHaveLength(3);
    expectLinear(turns);
  });
});

let current: ReturnType<typeof rollout>['session'];
const rolloutModel = () => current.model();
