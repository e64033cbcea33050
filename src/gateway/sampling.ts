/**
 * One model call: request → prompt ids → the engine's ids → a recorded Turn.
 *
 * The prompt of a call that continues a recorded conversation is the recorded ids plus the new messages; nothing that was sampled is
 * tokenised again. A turn is made from the complete ids, streamed or not; a stream is a view of it.
 */
import { hash } from 'node:crypto';
import type { Clock, Engine } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Message, Tool, Turn } from '../core/types.ts';
import { extendsHistory } from '../tokens/history.ts';
import type { Renderer } from '../tokens/renderer.ts';
import type { Piece } from '../tokens/response-stream.ts';
import type { ChatRequest } from './dialects/chat.ts';
import { effectiveSampling, type LiveSession } from './sessions.ts';

export interface SamplerParts {
  readonly engine: Engine;
  readonly renderer: Renderer;
  readonly clock: Clock;
}

/** Whoever listens while a turn is sampled. */
export interface Audience {
  /** Before the first token; not called for a turn of which nothing was sampled. */
  start(turn: Pick<Turn, 'startedAt'> & { readonly seed: number }): void;
  push(pieces: readonly Piece[]): void;
}

export async function sampleTurn(
  { engine, renderer, clock }: SamplerParts,
  session: LiveSession,
  role: string,
  chat: ChatRequest,
  signal: AbortSignal,
  audience?: Audience,
): Promise<Turn> {
  const seat = session.role(role);
  const wanted = effectiveSampling(session, seat, chat.requested);
  const maxTokens = session.begin(wanted.maxTokens);
  let draw: Draw | undefined;
  try {
    const startedAt = clock.now();
    const promptIds = promptOf(renderer, session, role, chat.messages, chat.tools);
    const effective = { ...wanted, maxTokens };
    draw = nextDraw(session, role, promptIds);
    const { seed } = draw;
    const view = audience && streamTo(audience, renderer, { startedAt, seed });
    const result = await engine.sample(
      { promptIds, sampling: effective, stopIds: renderer.stopIds, seed, affinity: session.spec.identity.groupId },
      signal,
      view?.onTokens,
    );
    const said = renderer.readResponse(result.ids);
    view?.end(result.ids, said);
    const calls = said.toolCalls.map((call, i) => ({
      id: toolCallId(session, seed, i),
      type: 'function' as const,
      function: call,
    }));
    return session.record({
      thread: role,
      role,
      trainable: seat.trainable,
      promptIds,
      sampledIds: result.ids,
      logprobs: result.logprobs,
      policyVersion: result.policyVersion,
      stopReason: result.stopReason,
      sampling: { requested: chat.requested, effective, seed },
      request: { messages: chat.messages, tools: chat.tools },
      response: { role: 'assistant', content: said.content, ...(calls.length > 0 ? { tool_calls: calls } : {}) },
      startedAt,
      endedAt: clock.now(),
    });
  } catch (thrown) {
    draw?.giveBack();
    if (thrown instanceof TrainyardError && thrown.code === 'CONTEXT_OVERFLOW') session.limitHit ??= 'context';
    throw thrown;
  } finally {
    session.end(maxTokens);
  }
}

/** Ids are known before a turn is complete, so they come from its seed, which no other turn of the rollout has. */
export function toolCallId(session: LiveSession, seed: number, index: number): string {
  return `call_${session.spec.identity.rolloutId}_${seed.toString(36)}_${index}`;
}

export function completionId(session: LiveSession, seed: number): string {
  return `chatcmpl-${session.spec.identity.rolloutId}-${seed.toString(36)}`;
}

interface View {
  readonly onTokens: (ids: Int32Array) => void;
  end(sampledIds: Int32Array, said: ReturnType<Renderer['readResponse']>): void;
}

function streamTo(audience: Audience, renderer: Renderer, turn: Parameters<Audience['start']>[0]): View {
  const response = renderer.streamResponse();
  let started = false;
  const tell = (pieces: readonly Piece[]): void => {
    if (!started) audience.start(turn);
    started = true;
    audience.push(pieces);
  };
  return {
    onTokens: (ids) => tell(response.push(ids)),
    end: (sampledIds, said) => tell(response.end(sampledIds, said)),
  };
}

/** The latest recorded turn that this conversation continues is extended; any other conversation is rendered afresh. */
function promptOf(
  renderer: Renderer,
  session: LiveSession,
  role: string,
  messages: readonly Message[],
  tools: readonly Tool[],
): Int32Array {
  if (renderer.extends) {
    for (const turn of session.turns.toReversed()) {
      if (turn.role !== role || JSON.stringify(turn.request.tools) !== JSON.stringify(tools)) continue;
      const tail = extendsHistory(turn.request.messages, turn.response, messages);
      if (tail !== undefined) return renderer.extend(turn, tail);
    }
  }
  return renderer.open(messages, tools);
}

interface Draw {
  readonly seed: number;
  /** Nothing was recorded: the next attempt has the same seed. */
  giveBack(): void;
}

/** The seed of a call depends on what is asked and how often, never on when it arrives or how many attempts were made. */
function nextDraw(session: LiveSession, role: string, promptIds: Int32Array): Draw {
  const { seed, identity } = session.spec;
  const asked = Buffer.from(promptIds.buffer, promptIds.byteOffset, promptIds.byteLength);
  const prompt = hash('sha256', Buffer.concat([Buffer.from(`${seed}\n${identity.rolloutId}\n${role}\n`), asked]), 'base64');
  const occurrence = session.occurrences.take(prompt);
  return {
    seed: hash('sha256', `${prompt}\n${occurrence}`, 'buffer').readUIntBE(0, 6),
    giveBack: () => session.occurrences.giveBack(prompt, occurrence),
  };
}
