/**
 * One rollout as rows of training data for another program, in the columns of its format. `stitch` makes the rows, so tokens, mask and
 * log-probabilities are those of training. Nothing is tokenised, rendered, rounded or padded here, and a rollout gives all of its rows or
 * none: then LeftOut is thrown. docs/reference/export-data.md describes the columns.
 */
import { isDeepStrictEqual } from 'node:util';
import { TrainyardError } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import { earnedBy } from '../core/reward.ts';
import { isSuccess } from '../core/turns.ts';
import type { Message, Reward, Sample, Trajectory, Turn } from '../core/types.ts';
import { type Chain, chainsOf, stitch } from '../tokens/stitch.ts';

/** `json`: the JSON text of a value of any shape. */
export type Scalar = 'text' | 'int' | 'float' | 'double' | 'boolean' | 'json';
/** A list is written as a list of the type of its elements. */
export type Column = Scalar | readonly [Column] | { readonly [name: string]: Column };
/** Type and value. */
type Columns = Readonly<Record<string, readonly [Column, (row: TokenRow) => unknown]>>;
export type Row = Readonly<Record<string, unknown>>;

interface RolloutToWrite {
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

export interface TokenRow extends RolloutToWrite {
  readonly sample: Sample;
  readonly chain: Chain;
  readonly last: Turn;
  readonly hasSignal: boolean;
  /** Among the rollout's rows, from 0. */
  readonly number: number;
  readonly reward: Reward | undefined;
}

export type Only = 'successes' | 'graded' | 'all';

export interface DataFormat {
  readonly file: 'jsonl' | 'parquet';
  /** Which rollouts are written by default. */
  readonly only: Only;
  /** None in a format of messages. */
  readonly columns: Columns;
  rowsOf(rollout: RolloutToWrite): readonly Row[];
}

/** A rollout that has no place in the format. The message says which, as in "12 without tokens". */
export class LeftOut extends Error {}

const TOOL_CALL: Column = { id: 'text', type: 'text', function: { name: 'text', arguments: 'text' } };
const MESSAGE: Column = {
  role: 'text',
  content: 'text',
  tool_calls: [TOOL_CALL],
  tool_call_id: 'text',
  name: 'text',
  reasoning: 'text',
};
const TURN: Column = { index: 'int', start: 'int', end: 'int', policy_version: 'int', stop_reason: 'text', reward: 'double' };

const WHOSE: Columns = {
  rollout_id: ['text', ({ trajectory }) => trajectory.rolloutId],
  group_id: ['text', ({ trajectory }) => trajectory.groupId],
  task_id: ['text', ({ trajectory }) => trajectory.taskId],
  reward: ['double', ({ reward }) => reward?.value],
};

const SAMPLE: Columns = {
  ...WHOSE,
  sample: ['int', ({ number }) => number],
  purpose: ['text', ({ trajectory }) => trajectory.purpose],
  step: ['int', ({ step }) => step],
  outcome: ['text', ({ trajectory: { outcome: o } }) => (o.kind === 'truncated' ? `truncated (${o.limit})` : o.kind)],
  success: ['boolean', ({ reward, trajectory }) => reward && isSuccess(trajectory)],
  parts: ['json', ({ reward }) => reward?.parts],
  metrics: ['json', ({ reward }) => reward?.metrics],
  thread: ['text', ({ last }) => last.thread],
  role: ['text', ({ last }) => last.role],
  temperature: ['double', ({ sample }) => sample.temperature],
  tokens: [['int'], ({ sample }) => [...sample.tokens]],
  mask: [['int'], ({ sample }) => [...sample.mask]],
  logprobs: [['float'], ({ sample }) => [...sample.logprobs]],
  advantages: [['float'], ({ sample, hasSignal }) => (hasSignal ? [...sample.advantages] : null)],
  turns: [[TURN], ({ chain, trajectory }) => chain.map((turn) => spanOf(trajectory, turn))],
  messages: [[MESSAGE], ({ last }) => messagesAfter(last)],
  tools: ['json', ({ last }) => last.request.tools],
};

/** For a loss over what rollouts said. `labels` are enough for TRL of today; earlier ones ignore them, but not the masks. */
const TRL: Columns = {
  input_ids: [['int'], ({ sample }) => [...sample.tokens]],
  labels: [['int'], ({ sample: { tokens, mask } }) => Array.from(tokens, (id, i) => (mask[i] === 1 ? id : -100))],
  assistant_masks: [['int'], ({ sample }) => [...sample.mask]],
  ...WHOSE,
};

/** The prompt to roll out anew, beside what came of it. */
const VERL: Columns = {
  data_source: ['text', () => 'trainyard'],
  prompt: [[{ role: 'text', content: 'text' }], firstPrompt],
  ability: ['text', () => 'agent'],
  // The store holds no answers.
  reward_model: [{ style: 'text', ground_truth: 'text' }, () => ({ style: 'rule', ground_truth: null })],
  extra_info: [
    { index: 'int', split: 'text', task_id: 'text', rollout_id: 'text', sample: 'int', temperature: 'double' },
    ({ group: index, trajectory: { purpose: split, taskId: task_id, rolloutId: rollout_id }, number, sample }) => ({
      index,
      split,
      task_id,
      rollout_id,
      sample: number,
      temperature: sample.temperature,
    }),
  ],
  uid: ['text', ({ trajectory }) => trajectory.groupId],
  prompt_ids: [['int'], ({ sample, chain }) => [...sample.tokens.subarray(0, chain[0].promptIds.length)]],
  response_ids: [['int'], ({ sample, chain }) => [...sample.tokens.subarray(chain[0].promptIds.length)]],
  response_mask: [['int'], ({ sample, chain }) => [...sample.mask.subarray(chain[0].promptIds.length)]],
  response_logprobs: [['float'], ({ sample, chain }) => [...sample.logprobs.subarray(chain[0].promptIds.length)]],
  reward_score: ['double', onlyReward],
  // As verl counts them: what was asked and what was said.
  num_turns: ['int', ({ chain }) => 2 * chain.length],
};

/** By the name that `--format` gives. */
export const DATA_FORMATS = {
  jsonl: { file: 'jsonl', only: 'graded', ...inColumns(SAMPLE) },
  parquet: { file: 'parquet', only: 'graded', ...inColumns(SAMPLE) },
  trl: { file: 'parquet', only: 'successes', ...inColumns(TRL, true) },
  verl: { file: 'parquet', only: 'graded', ...inColumns(VERL) },
  openai: { file: 'jsonl', only: 'successes', columns: {}, rowsOf: conversationRows },
} as const satisfies Readonly<Record<string, DataFormat>>;

function inColumns(columns: Columns, anySampling = false): Pick<DataFormat, 'columns' | 'rowsOf'> {
  const rowOf = (row: TokenRow): Row =>
    Object.fromEntries(Object.entries(columns).map(([name, [type, value]]) => [name, fitted(type, value(row))]));
  return { columns, rowsOf: (rollout) => tokenRows(rollout, anySampling).map(rowOf) };
}

/**
 * With every field of its type, null if absent: `datasets` reads JSON Lines whose objects differ in fields too, but then rounds all numbers
 * of the file to ten decimals.
 */
function fitted(type: Column, value: unknown): unknown {
  if (value === undefined || value === null) return null;
  if (type === 'json') return JSON.stringify(value);
  if (typeof type === 'string') return value;
  if (isList(type)) return typeof type[0] === 'string' ? value : (value as unknown[]).map((one) => fitted(type[0], one));
  return Object.fromEntries(Object.entries(type).map(([name, of]) => [name, fitted(of, (value as Row)[name])]));
}

export function isList(type: Exclude<Column, Scalar>): type is readonly [Column] {
  return Array.isArray(type);
}

/** Throws LeftOut if the rollout has none. */
export function tokenRows(rollout: RolloutToWrite, anySampling: boolean): readonly TokenRow[] {
  const { trajectory, advantageOf } = rollout;
  const { rolloutId, groupId, grade } = trajectory;
  // Without a grade, roles alone say what is trained.
  const trained = trajectory.turns.filter((turn) => grade.kind !== 'graded' || earnedBy(trajectory, turn) !== undefined);
  const chains = chainsOf(trained);
  if (chains.length === 0) throw new LeftOut('without tokens of the policy');
  const reward = grade.kind === 'graded' ? grade.reward : undefined;
  const options = { advantageOf: (turn: Turn) => advantageOf(turn) ?? 0, weight: 1, rolloutId, groupId, anySampling };
  try {
    return chains.map((chain, number) => {
      const hasSignal = chain.some((turn) => advantageOf(turn) !== undefined);
      return { ...rollout, sample: stitch(chain, options)[0]!, chain, last: chain.at(-1)!, hasSignal, number, reward };
    });
  } catch (thrown) {
    if (!(thrown instanceof TrainyardError) || thrown.code !== 'SAMPLE_REFUSED') throw thrown;
    throw new LeftOut('sampled greedily, with top-p or top-k, or with impossible log-probabilities');
  }
}

function spanOf(trajectory: Trajectory, turn: Turn): object {
  const { index, promptIds, sampledIds, policyVersion, stopReason } = turn;
  const start = promptIds.length;
  const end = promptIds.length + sampledIds.length;
  const reward = earnedBy(trajectory, turn)?.reward;
  return { index, start, end, policy_version: policyVersion, stop_reason: stopReason, reward };
}

function firstPrompt({ trajectory: { turns }, last }: TokenRow): readonly object[] {
  const first = turns.find(({ thread, role }) => thread === last.thread && role === last.role) ?? last;
  return first.request.messages.map(({ role, content, tool_calls }) => {
    if (role !== 'tool' && content !== null && tool_calls === undefined) return { role, content };
    throw new LeftOut('with a first prompt that holds tool calls');
  });
}

function onlyReward({ chain, trajectory }: TokenRow): number | undefined {
  const rewards = new Set(chain.map((turn) => earnedBy(trajectory, turn)?.reward));
  if (rewards.size > 1) throw new LeftOut('with several rewards in one row');
  return [...rewards][0];
}

function messagesAfter({ request, response }: Turn): readonly Message[] {
  return [...request.messages, response];
}

// Rows of messages, which models behind an API have too.

/**
 * One row for each conversation, whose assistant messages count unless their weight is 0. Each answer of the policy counts in one row. One
 * that was cut short counts in none: trainers would end it with a token that was never sampled.
 */
function conversationRows({ trajectory, leaveOut }: RolloutToWrite): readonly Row[] {
  const { turns, grade } = trajectory;
  const untrained = grade.kind === 'graded' ? (grade.reward.untrained ?? []) : [];
  const said = turns.filter(({ trainable, thread }) => trainable && !untrained.includes(thread));
  if (said.length === 0) throw new LeftOut('without an answer of the policy');
  if (said.some(({ request }) => request.messages.length === 0)) throw new LeftOut('asked in tokens, without messages');
  const isWhole = ({ stopReason }: Turn): boolean => stopReason === 'stop';
  if (!said.some(isWhole)) throw new LeftOut('with nothing but answers cut short');
  leaveOut('answers cut short', said.filter((turn) => !isWhole(turn)).length);
  return conversationsOf(said).flatMap((conversation) => {
    const { request } = conversation.at(-1)!;
    const counted = new Set(conversation.filter(isWhole).map((turn) => turn.request.messages.length));
    const messages = messagesAfter(conversation.at(-1)!).map((message, i) => openaiMessage(message, counted.has(i)));
    return counted.size === 0 ? [] : [{ messages, ...(request.tools.length > 0 && { tools: request.tools }) }];
  });
}

/** A turn goes on with the conversation whose messages and answer its request begins with. */
function conversationsOf(turns: readonly Turn[]): readonly (readonly Turn[])[] {
  const conversations: Turn[][] = [];
  const partsOf = ({ thread, role, request }: Turn, messages: readonly Message[]) => [thread, role, request.tools, messages];
  for (const turn of turns.toSorted((a, b) => a.index - b.index)) {
    const before = conversations.findLast((conversation) => {
      const last = conversation.at(-1)!;
      const known = messagesAfter(last);
      return isDeepStrictEqual(partsOf(last, known), partsOf(turn, turn.request.messages.slice(0, known.length)));
    });
    if (before) before.push(turn);
    else conversations.push([turn]);
  }
  return conversations;
}

/** Without reasoning, for which the format has no place. */
function openaiMessage({ role, content, name, tool_calls, tool_call_id }: Message, counts: boolean): object {
  const weight = role === 'assistant' && !counts ? 0 : undefined;
  const said = { content: content ?? (tool_calls === undefined ? '' : undefined), name, tool_calls, tool_call_id, weight };
  return { role, ...defined(said) };
}
