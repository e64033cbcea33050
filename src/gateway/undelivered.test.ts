import { describe, expect, it } from 'vitest';
import { scriptedEngine } from '../../packages/testing/src/trajectories.ts';
import { ANSWER, ask, LOOKUP, post, renderer, say, specOf, until } from '../../test/fixtures/gateway/streams.ts';
import type { Message, Turn } from '../core/types.ts';
import { createRenderer, type Renderer } from '../tokens/renderer.ts';
import { createTokenizer } from '../tokens/tokenizer.ts';
import { readTokenizerFiles } from '../tokens/tokenizer-files.ts';
import { Gateway } from './gateway.ts';

describe('an answer that seemed lost, but whose words came back', () => {
  const files = readTokenizerFiles(new URL('../../models/base', import.meta.url).pathname);
  const ABOUT = "{{- '<|im_start|>' + message.role";

  /** Its client hangs up before the end of the stream, when all of it was said, and goes on with what `resend` makes of the answer. */
  const goOn = async (words: Renderer, reply: string, resend: (said: Message) => object) => {
    const engine = scriptedEngine({ vocabSize: words.vocabSize, contextLength: 8192, reply: () => say(reply) });
    const session = new Gateway({ engine, renderer: words, modelName: 'policy' }).open(
      specOf('r1', { sampling: { temperature: 1, topP: 1, topK: 0, maxTokens: 200 } }),
    );
    const lost = await post(session, JSON.stringify({ messages: ask, stream: true }));
    await until(() => session.turns.length === 1);
    await lost.body!.cancel();
    const said = resend(session.turns[0]!.response);
    await post(session, JSON.stringify({ messages: [...ask, said, { role: 'user', content: 'Sure?' }] }));
    return session.seal();
  };
  const causes = (turns: readonly Turn[]) => turns.map(({ fork, after, undelivered }) => [fork?.cause, after, undelivered]);

  it('is trained, also where the template wrote it afresh', async () => {
    const { chatTemplate, ...others } = await files;
    // Says in every message how many there are.
    const counting = chatTemplate.replace(ABOUT, "{{- '<|im_start|>' + (messages | length | string) + message.role");
    expect(counting).not.toBe(chatTemplate);
    const words = createRenderer(createTokenizer({ ...others, chatTemplate: counting }));
    expect(causes(await goOn(words, ANSWER, (said) => said))).toEqual([
      [undefined, undefined, undefined],
      ['template_rewrites_history', undefined, undefined],
    ]);
  });

  it('is trained, also where the client dropped one of its calls', async () => {
    const two = `${LOOKUP.replace('<|im_end|>', '')}${LOOKUP}`;
    const drop = (said: Message) => ({ ...said, tool_calls: said.tool_calls!.slice(1) });
    expect(causes(await goOn(renderer, two, drop))).toEqual([
      [undefined, undefined, undefined],
      ['dropped_tool_call', undefined, undefined],
    ]);
  });

  it('is not, where only a part of it came back', async () => {
    const cut = (said: Message) => ({ ...said, content: said.content!.slice(0, 4) });
    expect(causes(await goOn(renderer, ANSWER, cut))).toEqual([
      [undefined, undefined, true],
      ['edited_message', undefined, undefined],
    ]);
  });
});
