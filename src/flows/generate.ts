/**
 * `/generate`, in token form and in message form: one turn, told as text and as ids, with an id that says which turn it is.
 *
 * In message form an answer may come back as the plain text that was given for it, tool calls and all, as flows of this kind do. It is
 * then taken for what it is, the recorded answer, so that the conversation goes on from the sampled ids.
 */
import { hash } from 'node:crypto';
import type { Message, Turn } from '../core/types.ts';
import { isMarkedRetry } from '../gateway/answers.ts';
import { invalid, parsed } from '../gateway/dialects/parameters.ts';
import type { Grant } from '../gateway/keys.ts';
import { type HttpReply, jsonReply } from '../http/message.ts';
import type { FlowParts, ReadCall } from './flow-parts.ts';
import type { FlowTrajectory } from './flow-trajectory.ts';
import { trajectoryNamed } from './uids.ts';
import { messageForm, type SamplingParams, tokenForm } from './wire.ts';

export async function generate(parts: FlowParts, grant: Grant, call: ReadCall, raw: unknown): Promise<HttpReply> {
  const isTokens = typeof raw === 'object' && raw !== null && 'prompt_ids' in raw;
  const names = isTokens ? parsed(tokenForm, raw) : parsed(messageForm, raw);
  const sampling = 'prompt_ids' in names ? (names.sampling_params ?? {}) : names;
  checkModel(parts, sampling);
  const trajectory = trajectoryOf(parts, grant, call, names);
  const { session } = trajectory;
  const question = {
    ...samplingOf(sampling),
    ...('prompt_ids' in names
      ? { promptIds: knownIds(parts, names.prompt_ids, 'prompt_ids') }
      : {
          messages: inRecordedWords(parts, session.turns, names.messages) as readonly Message[],
          ...(names.tools == null ? {} : { tools: names.tools as never }),
        }),
  };
  const key = hash('sha256', `generate\n${call.header('idempotency-key') ?? ''}\n${call.text}`, 'base64');
  const sample = async (): Promise<readonly Turn[]> => {
    const { turn } = await parts.gateway.generate(trajectory.uid, {
      ...question,
      ...(call.signal ? { signal: call.signal } : {}),
    });
    return [turn];
  };
  // The answer that a client missed is given to its retry; a second turn would be trained.
  const { value, miss } = await session.answers.get(key, isMarkedRetry(call.header), sample);
  return { ...jsonReply(200, told(parts, trajectory, value[0]!)), undelivered: miss };
}

function told({ renderer, ids }: FlowParts, { session, uid, promptUid }: FlowTrajectory, turn: Turn): object {
  const { index, promptIds, sampledIds, logprobs, policyVersion, stopReason, response } = turn;
  const responseIds = [...sampledIds];
  return {
    trajectory_uid: uid,
    prompt_uid: promptUid,
    generation_id: ids.make({ rollout: uid, session: session.number, turn: index }),
    response_text: renderer.text(sampledIds),
    message: response,
    response_ids: responseIds,
    token_ids: responseIds,
    prompt_ids: [...promptIds],
    log_probs: [...logprobs],
    stop_reason: stopReason,
    policy_version: policyVersion,
  };
}

/** The rollout of the key, else the one that is named; in message form a new name opens a trajectory where there can be new ones. */
function trajectoryOf(
  { table }: FlowParts,
  grant: Grant,
  call: ReadCall,
  { trajectory_uid, prompt_uid }: { trajectory_uid?: string | null | undefined; prompt_uid?: string | null | undefined },
): FlowTrajectory {
  const name = trajectoryNamed(trajectory_uid, call, grant);
  const trajectory = table.findOrOpen(grant, name, prompt_uid == null ? {} : { promptUid: prompt_uid });
  if (prompt_uid != null) trajectory.isOfPrompt(prompt_uid);
  return trajectory;
}

function samplingOf({ temperature, top_p, top_k, max_tokens, stop }: SamplingParams) {
  return {
    ...(temperature == null ? {} : { temperature }),
    ...(top_p == null ? {} : { topP: top_p }),
    ...(top_k == null ? {} : { topK: top_k }),
    ...(max_tokens == null ? {} : { maxTokens: max_tokens }),
    ...(stop == null ? {} : { stop: typeof stop === 'string' ? [stop] : stop }),
  };
}

function checkModel({ modelName }: FlowParts, { model }: SamplingParams): void {
  if (model == null || model === modelName || model === 'default') return;
  throw invalid('model', `there is no model ${JSON.stringify(model.slice(0, 80))}`, `leave it out, or say ${modelName}`);
}

export function knownIds({ renderer }: FlowParts, given: readonly number[], param: string): readonly number[] {
  const bad = given.findIndex((id) => id >= renderer.vocabSize);
  if (bad === -1) return given;
  throw invalid(`${param}.${bad}`, `${given[bad]} is none of the ${renderer.vocabSize} tokens`);
}

function inRecordedWords({ renderer }: FlowParts, turns: readonly Turn[], messages: unknown): unknown {
  if (!Array.isArray(messages) || turns.length === 0) return messages;
  const byText = new Map(turns.map((turn) => [renderer.text(turn.sampledIds), turn.response]));
  return messages.map((message: unknown) => {
    const { role, content, tool_calls: calls } = (message ?? {}) as Partial<Message>;
    if (role !== 'assistant' || typeof content !== 'string' || calls !== undefined) return message;
    const recorded = byText.get(content);
    return recorded === undefined || recorded.content === content ? message : recorded;
  });
}
