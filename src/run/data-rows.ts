/**
 * One rollout as rows of training data for another program, in the columns of its format; or the reason why it has none. `stitch` makes the
 * rows, so tokens, mask and log-probabilities are those of training. Nothing is tokenised, rendered, rounded or padded here, and a
 * rollout gives all of its rows or none. docs/reference/export-data.md describes the columns.
 */
import { isDeepStrictEqual } from 'node:util';
import { TrainyardError } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import { earnedBy } from '../core/reward.ts';
import type { Message, Sample, Trajectory, Turn } from '../core/types.ts';
import { type Chain, chainsOf, stitch } from '../tokens/stitch.ts';
import { isSuccess } from './results.ts';

/** `json`: any value, in Parquet as its JSON text. A list has one element, the type of its own. */
export type Column =
  | 'text'
  | 'int'
  | 'float'
  | 'double'
  | 'boolean'
  | 'json'
  | readonly [Column]
  | { readonly [name: string]: Column };
export type Columns = Readonly<Record<string, Column>>;
export type Row = Readonly<Record<string, unknown>>;

export interface RolloutToWrite {
  readonly trajectory: Trajectory;
  /** Undefined without signal. */
  advantageOf(turn: Turn): number | undefined;
  /** The step that trained the rollout. */
  readonly step: number | null;
  /** Number of the group in the file, from 0. */
  readonly group: number;
  /** Counts what is smaller than a rollout and has no place in the format. */
  leaveOut(what: string, n: number): void;
}

/** Why a rollout has no row, as in "12 rollouts without tokens". */
type Why = string;

export interface DataFormat {
  readonly file: 'jsonl' | 'parquet';
  /** Which rollouts are written by default. */
  readonly only: Only;
  /** Of a Parquet file. */
  readonly columns: Columns;
  rowsOf(rollout: RolloutToWrite): readonly Row[] | Why;
}

export type Only = 'successes' | 'graded' | 'all';

const TOOL_CALL: Column = { id: 'text', type: 'text', function: { name: 'text', arguments: 'text' } };
const MESSAGE: Column = {
  ...{ role: 'text', content: 'text', tool_calls: [TOOL_CALL], tool_call_id: 'text', name: 'text', reasoning: 'text' },
};
const SAMPLE: Columns = {
  ...{ rollout_id: 'text', sample: 'int', samples: 'int', group_id: 'text', task_id: 'text', purpose: 'text', step: 'int' },
  ...{ outcome: 'text', reward: 'double', success: 'boolean', parts: 'json', metrics: 'json', thread: 'text', role: 'text' },
  ...{ temperature: 'double', tokens: ['int'], mask: ['int'], logprobs: ['float'], advantages: ['float'] },
  turns: [{ index: 'int', start: 'int', end: 'int', policy_version: 'int', stop_reason: 'text', reward: 'double' }],
  ...{ messages: [MESSAGE], tools: 'json' },
};
const IMITATION: Columns = {
  ...{ input_ids: ['int'], labels: ['int'], assistant_masks: ['int'] },
  ...{ rollout_id: 'text', group_id: 'text', task_id: 'text', reward: 'double' },
};
const VERL: Columns = {
  ...{ data_source: 'text', prompt: [{ role: 'text', content: 'text' }], ability: 'text' },
  reward_model: { style: 'text', ground_truth: 'text' },
  extra_info: { index: 'int', split: 'text', task_id: 'text', rollout_id: 'text', sample: 'int', temperature: 'double' },
  ...{ uid: 'text', prompt_ids: ['int'], response_ids: ['int'], response_mask: ['int'], response_logprobs: ['float'] },
  ...{ reward_score: 'double', num_turns: 'int' },
};

/** By the name that `--format` gives. */
export const DATA_FORMATS = {
  jsonl: { file: 'jsonl', only: 'graded', columns: SAMPLE, rowsOf: sampleRows },
  parquet: { file: 'parquet', only: 'graded', columns: SAMPLE, rowsOf: sampleRows },
  trl: { file: 'parquet', only: 'successes', columns: IMITATION, rowsOf: imitationRows },
  verl: { file: 'parquet', only: 'graded', columns: VERL, rowsOf: verlRows },
  openai: { file: 'jsonl', only: 'successes', columns: {}, rowsOf: conversationRows },
} as const satisfies Readonly<Record<string, DataFormat>>;
export type FormatName = keyof typeof DATA_FORMATS;

// Rows of tokens.

interface TokenRow {
  readonly sample: Sample;
  readonly chain: Chain;
  readonly last: Turn;
}

function tokenRows(rollout: RolloutToWrite, anySampling: boolean): readonly TokenRow[] | Why {
  const { trajectory, advantageOf } = rollout;
  const { rolloutId, groupId, grade } = trajectory;
  // Without a grade nothing is known of what is trained but the role.
  const trained = trajectory.turns.filter((turn) => grade.kind !== 'graded' || earnedBy(trajectory, turn) !== undefined);
  const chains = chainsOf(trained);
  if (chains.length === 0) return 'rollouts without tokens of the policy';
  const options = { advantageOf: (turn: Turn) => advantageOf(turn) ?? 0, weight: 1, rolloutId, groupId, anySampling };
  try {
    return chains.map((chain) => ({ sample: stitch(chain, options)[0]!, chain, last: chain.at(-1)! }));
  } catch (thrown) {
    if (!(thrown instanceof TrainyardError) || thrown.code !== 'SAMPLE_REFUSED') throw thrown;
    return 'rollouts sampled greedily, with top-p or top-k, or with impossible log-probabilities';
  }
}

function sampleRows(rollout: RolloutToWrite): readonly Row[] | Why {
  const { trajectory, advantageOf, step } = rollout;
  const { outcome, grade } = trajectory;
  const rows = tokenRows(rollout, false);
  if (typeof rows === 'string') return rows;
  const { parts = null, metrics = null } = grade.kind === 'graded' ? grade.reward : {};
  return rows.map(({ sample, chain, last }, number) => ({
    ...{ rollout_id: trajectory.rolloutId, sample: number, samples: rows.length },
    ...{ group_id: trajectory.groupId, task_id: trajectory.taskId, purpose: trajectory.purpose, step },
    outcome: outcome.kind === 'truncated' ? `truncated (${outcome.limit})` : outcome.kind,
    ...{ reward: rewardOf(trajectory), success: grade.kind === 'graded' ? isSuccess(trajectory) : null, parts, metrics },
    ...{ thread: last.thread, role: last.role, temperature: sample.temperature },
    ...{ tokens: [...sample.tokens], mask: [...sample.mask], logprobs: [...sample.logprobs] },
    advantages: chain.some((turn) => advantageOf(turn) !== undefined) ? [...sample.advantages] : null,
    turns: chain.map((turn) => ({
      ...{ index: turn.index, start: turn.promptIds.length, end: turn.promptIds.length + turn.sampledIds.length },
      ...{ policy_version: turn.policyVersion, stop_reason: turn.stopReason },
      reward: earnedBy(trajectory, turn)?.reward ?? null,
    })),
    ...{ messages: messagesAfter(last), tools: last.request.tools },
  }));
}

/** For a loss over what successful rollouts said. `labels` are enough for TRL of today; earlier ones ignore them, but not the masks. */
function imitationRows(rollout: RolloutToWrite): readonly Row[] | Why {
  const { trajectory } = rollout;
  const rows = tokenRows(rollout, true);
  if (typeof rows === 'string') return rows;
  return rows.map(({ sample }) => ({
    input_ids: [...sample.tokens],
    labels: Array.from(sample.tokens, (id, i) => (sample.mask[i] === 1 ? id : -100)),
    assistant_masks: [...sample.mask],
    ...{ rollout_id: trajectory.rolloutId, group_id: trajectory.groupId, task_id: trajectory.taskId },
    reward: rewardOf(trajectory),
  }));
}

/** The prompt to roll out anew beside what came of it. Answers of tasks are not in the store, so `ground_truth` is null. */
function verlRows(rollout: RolloutToWrite): readonly Row[] | Why {
  const { trajectory, group } = rollout;
  const { rolloutId, groupId, taskId, purpose } = trajectory;
  const rows = tokenRows(rollout, false);
  if (typeof rows === 'string') return rows;
  const written: Row[] = [];
  for (const [number, { sample, chain, last }] of rows.entries()) {
    const rewards = new Set(chain.map((turn) => earnedBy(trajectory, turn)?.reward ?? null));
    if (rewards.size > 1) return 'rollouts with several rewards in one row';
    const first = trajectory.turns.find(({ thread, role }) => thread === last.thread && role === last.role) ?? last;
    const { messages } = first.request;
    if (messages.some(({ role, content, tool_calls }) => role === 'tool' || content === null || tool_calls !== undefined)) {
      return 'rollouts whose first prompt holds tool calls';
    }
    const from = chain[0].promptIds.length;
    written.push({
      ...{ data_source: 'trainyard', prompt: messages.map(({ role, content }) => ({ role, content })), ability: 'agent' },
      reward_model: { style: 'rule', ground_truth: null },
      extra_info: {
        ...{ index: group, split: purpose, task_id: taskId, rollout_id: rolloutId, sample: number },
        temperature: sample.temperature,
      },
      ...{ uid: groupId, prompt_ids: [...sample.tokens.subarray(0, from)], response_ids: [...sample.tokens.subarray(from)] },
      ...{ response_mask: [...sample.mask.subarray(from)], response_logprobs: [...sample.logprobs.subarray(from)] },
      // As verl counts them: what was asked and what was said.
      ...{ reward_score: [...rewards][0], num_turns: 2 * chain.length },
    });
  }
  return written;
}

function rewardOf({ grade }: Trajectory): number | null {
  return grade.kind === 'graded' ? grade.reward.value : null;
}

function messagesAfter({ request, response }: Turn): readonly Message[] {
  return [...request.messages, response];
}

// Rows of messages, which models behind an API have too.

/**
 * One row for each conversation, whose assistant messages count unless their weight is 0. Each answer of the policy counts in one row. One
 * that was cut short counts in none: trainers would end it with a token that was never sampled.
 */
function conversationRows({ trajectory, leaveOut }: RolloutToWrite): readonly Row[] | Why {
  const { turns, grade } = trajectory;
  const untrained = grade.kind === 'graded' ? (grade.reward.untrained ?? []) : [];
  const said = turns.filter(({ trainable, thread }) => trainable && !untrained.includes(thread));
  if (said.length === 0) return 'rollouts without an answer of the policy';
  if (said.some(({ request }) => request.messages.length === 0)) return 'rollouts asked in tokens, without messages';
  if (said.every(({ stopReason }) => stopReason === 'length')) return 'rollouts with nothing but answers that were cut short';
  return conversationsOf(said).flatMap((conversation) => {
    const whole = conversation.filter(({ stopReason }) => stopReason === 'stop');
    leaveOut('answers that were cut short', conversation.length - whole.length);
    if (whole.length === 0) return [];
    const counted = new Set(whole.map(({ request }) => request.messages.length));
    const last = conversation.at(-1)!;
    const messages = messagesAfter(last).map((message, i) => openaiMessage(message, counted.has(i)));
    return [{ messages, ...(last.request.tools.length > 0 && { tools: last.request.tools }) }];
  });
}

/** A turn goes on with the conversation whose messages and answer its request begins with. */
function conversationsOf(turns: readonly Turn[]): readonly (readonly Turn[])[] {
  const conversations: Turn[][] = [];
  for (const turn of turns.toSorted((a, b) => a.index - b.index)) {
    const before = conversations.findLast((conversation) => {
      const last = conversation.at(-1)!;
      const known = messagesAfter(last);
      const isSame = last.thread === turn.thread && last.role === turn.role;
      return (
        isSame &&
        isDeepStrictEqual([known, last.request.tools], [turn.request.messages.slice(0, known.length), turn.request.tools])
      );
    });
    if (before) before.push(turn);
    else conversations.push([turn]);
  }
  return conversations;
}

/** The format has no place for reasoning. */
function openaiMessage({ reasoning: _, ...message }: Message, counts: boolean): object {
  const calls = message.tool_calls?.length ? message.tool_calls : undefined;
  const content = message.content ?? (calls ? undefined : '');
  const weight = message.role === 'assistant' && !counts ? 0 : undefined;
  const { role, tool_call_id, name } = message;
  return defined({ role, content, name, tool_calls: calls, tool_call_id, weight });
}
