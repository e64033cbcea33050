/**
 * How the cost of a turn grows with its conversation, in process and without any server: matching a request to the recorded turns,
 * rendering and tokenising what is new, decoding what was sampled. And how many tokens training saves by stitching turns.
 *
 * Words differ from turn to turn and from conversation to conversation. Turns are compared inside each conversation, times with those of a
 * model that generates 50 tokens a second.
 */
import type { Engine } from '../../src/core/policy.ts';
import type { Message, Turn } from '../../src/core/types.ts';
import { Gateway } from '../../src/gateway/gateway.ts';
import { relate } from '../../src/tokens/history.ts';
import type { Renderer } from '../../src/tokens/renderer.ts';
import { stitch } from '../../src/tokens/stitch.ts';
import { type Material, messagesOf, question, TOOLS, wordsAt } from './conversation.ts';
import { median } from './slices.ts';

const TURNS = 128;
const EARLY = 8;
const SAMPLED = 100;
const GENERATED_PER_SECOND = 50;
const CONVERSATIONS = 41;
const LINEAR_TURNS = 20;

export interface Growth {
  readonly renderShareTurn128: number;
  readonly turn128OverTurn8: number;
  /** The same with matching and decoding. */
  readonly wholeTurn128OverTurn8: number;
  readonly promptTokensTurn128: number;
}

/** Milliseconds of each turn. */
interface Costs {
  readonly rendered: number[];
  readonly whole: number[];
  readonly promptTokens: number;
}

export function growth(material: Material): Growth {
  const runs = Array.from({ length: CONVERSATIONS + 2 }, (_, i) => converse(material, i)).slice(2);
  const around = (costs: readonly number[], turn: number): number => median(costs.slice(turn - 2, turn + 1));
  const over = (pick: (costs: Costs) => readonly number[]): number =>
    median(runs.map((costs) => around(pick(costs), TURNS - 1) / around(pick(costs), EARLY)));
  const generationMs = (TURNS * SAMPLED * 1000) / GENERATED_PER_SECOND;
  return {
    renderShareTurn128: median(runs.map(({ whole }) => whole.reduce((sum, ms) => sum + ms, 0))) / generationMs,
    turn128OverTurn8: over(({ rendered }) => rendered),
    wholeTurn128OverTurn8: over(({ whole }) => whole),
    promptTokensTurn128: runs[0]!.promptTokens,
  };
}

function converse({ tokenizer, renderer }: Material, number: number): Costs {
  const turns: Turn[] = [];
  const messages: Message[] = [...messagesOf(1, '')];
  const costs: Costs = { rendered: [], whole: [], promptTokens: 0 };
  let promptTokens = 0;
  for (let turn = 1; turn <= TURNS; turn++) {
    const said = tokenizer.encodeText(wordsAt(turn * 31 + number * 977, 80)).subarray(0, SAMPLED - 1);
    const sampledIds = Int32Array.from([...said, renderer.stopIds[0]!]);
    // As they come from the wire: equal, but not the same objects.
    const asked = JSON.parse(JSON.stringify(messages)) as Message[];
    const start = performance.now();
    const { continues } = relate(turns, { thread: 'a', role: 'a', messages: asked, tools: TOOLS });
    const matched = performance.now();
    const promptIds = continues ? renderer.extend(continues.turn, continues.newMessages)! : renderer.open(asked, TOOLS);
    const rendered = performance.now();
    const { content } = renderer.readResponse(sampledIds);
    costs.whole.push(performance.now() - start);
    costs.rendered.push(rendered - matched);
    if (turn > 1 && continues?.turn !== turns.at(-1)) throw new Error(`turn ${turn} does not continue the one before`);
    turns.push(turnOf(turns.length, promptIds, sampledIds, asked, content));
    promptTokens = promptIds.length;
    messages.push({ role: 'assistant', content }, { role: 'user', content: question(turn + number * 131) });
  }
  return { ...costs, promptTokens };
}

function turnOf(
  index: number,
  promptIds: Int32Array,
  sampledIds: Int32Array,
  messages: readonly Message[],
  content: string | null,
): Turn {
  const effective = { temperature: 1, topP: 1, topK: 0, maxTokens: SAMPLED };
  return {
    index,
    thread: 'a',
    role: 'a',
    trainable: true,
    promptIds,
    sampledIds,
    logprobs: new Float32Array(sampledIds.length),
    policyVersion: 1,
    stopReason: 'stop',
    sampling: { requested: {}, effective, seed: 1 },
    request: { messages, tools: TOOLS },
    response: { role: 'assistant', content },
    startedAt: 0,
    endedAt: 0,
  };
}

/** Tokens trained of a linear conversation that a gateway recorded, over those of one sample for each call. */
export async function stitchRatio({ replyIds, logprobs, renderer, reply }: Material): Promise<number> {
  const session = new Gateway({ engine: always(replyIds, logprobs, renderer), renderer, modelName: 'policy' }).open({
    identity: { rolloutId: 'r', groupId: 'g', taskId: 't', purpose: 'train' },
    roles: {},
    sampling: { temperature: 1, topP: 1, topK: 0, maxTokens: 256 },
    limits: { turns: LINEAR_TURNS, tokens: 100_000, deadlineMs: 60_000 },
    seed: 1,
    signal: new AbortController().signal,
  });
  const { baseURL, apiKey, fetch } = session.model();
  for (let turn = 1; turn <= LINEAR_TURNS; turn++) {
    const body = JSON.stringify({ model: 'policy', messages: messagesOf(turn, reply), tools: TOOLS });
    const headers = { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' };
    const response = await fetch(`${baseURL}/chat/completions`, { method: 'POST', headers, body });
    if (!response.ok) throw new Error(await response.text());
  }
  const turns = session.seal();
  const samples = stitch(turns, { advantageOf: () => 1, weight: 1, rolloutId: 'r', groupId: 'g' });
  const trained = samples.reduce((sum, { tokens }) => sum + tokens.length, 0);
  return trained / turns.reduce((sum, { promptIds, sampledIds }) => sum + promptIds.length + sampledIds.length, 0);
}

function always(replyIds: readonly number[], logprobs: readonly number[], { vocabSize }: Renderer): Engine {
  const result = { stopReason: 'stop', policyVersion: 1 } as const;
  return {
    vocabSize,
    contextLength: 32_768,
    policyVersion: 1,
    sample: async () => ({ ...result, ids: Int32Array.from(replyIds), logprobs: Float32Array.from(logprobs) }),
  };
}
