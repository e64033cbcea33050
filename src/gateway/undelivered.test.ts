import { describe, expect, it } from 'vitest';
import { ANSWER, ask, LOOKUP, open, post, renderer, say, until } from '../../test/fixtures/gateway/streams.ts';
import { files, rendererWith } from '../../test/fixtures/tokens/base.ts';
import type { Message, Turn } from '../core/types.ts';
import type { Renderer } from '../tokens/renderer.ts';

describe('an answer that seemed lost, but whose words came back', () => {
  const ABOUT = "{{- '<|im_start|>' + message.role";

  /** Its client hangs up before the end of the stream, when all of it was said, and goes on with what `resend` makes of the answer. */
  const goOn = async (words: Renderer, reply: string, resend: (said: Message) => object) => {
    const { session } = open({ renderer: words, reply: () => say(reply) });
    const lost = await post(session, JSON.stringify({ messages: ask, stream: true }));
    await until(() => session.turns.length === 1);
    await lost.body!.cancel();
    const said = resend(session.turns[0]!.response);
    await post(session, JSON.stringify({ messages: [...ask, said, { role: 'user', content: 'Sure?' }] }));
    return session.seal();
  };
  const causes = (turns: readonly Turn[]) => turns.map(({ fork, after, undelivered }) => [fork?.cause, after, undelivered]);

  it('is trained, also where the template wrote it afresh', async () => {
    const { chatTemplate } = files;
    // Says in every message how many there are.
    const counting = chatTemplate.replace(ABOUT, "{{- '<|im_start|>' + (messages | length | string) + message.role");
    expect(counting).not.toBe(chatTemplate);
    expect(causes(await goOn(rendererWith(counting), ANSWER, (said) => said))).toEqual([
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
