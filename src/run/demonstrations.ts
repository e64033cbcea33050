/**
 * Reads what a policy is to be taught: the successful rollouts of a run, whichever model made them, or a file of conversations in OpenAI's
 * fine-tuning format. Gives samples in the policy's own tokens, grouped by task. Everything that is left out is counted by its reason.
 * Rollouts of held-out tasks are left out: a policy that was shown the answers would be measured on its memory.
 */
import { existsSync, statSync } from 'node:fs';
import { extname, join } from 'node:path';
import { TrainyardError } from '../core/errors.ts';
import { digestOf } from '../core/json.ts';
import { exclusionsOf, withoutExcluded } from '../core/turns.ts';
import type { Message, Sample, Task, Tool, Trajectory } from '../core/types.ts';
import { readRows } from '../dataset/tasks.ts';
import { chat } from '../gateway/dialects/chat.ts';
import type { Renderer } from '../tokens/renderer.ts';
import { stitch } from '../tokens/stitch.ts';
import { type AnsweredCall, areOwn, ownTurns, type TaughtTurns, taughtTurns } from '../tokens/taught-turns.ts';
import { isEvaluation, readRunFile } from './directory.ts';
import { openStoreOf } from './inspect.ts';
import type { EvaluationRecord } from './plan.ts';
import { isSuccess } from './results.ts';

export interface Demonstrations {
  /** Weight and advantage 1; `groupId` is the task. */
  readonly samples: readonly Sample[];
  readonly conversations: number;
  readonly tasks: number;
  /** How many were left out, by reason. */
  readonly leftOut: Readonly<Record<string, number>>;
}

export interface TeachOptions {
  readonly renderer: Renderer;
  readonly contextLength: number;
  /** Tasks that the policy will be measured on. */
  readonly heldOut?: readonly Task[];
}

/** One rollout or one conversation of a file. */
interface Demonstration {
  readonly id: string;
  readonly task: string;
  readonly calls: readonly AnsweredCall[];
  readonly turns?: Trajectory['turns'];
}

const HELD_OUT = 'of a held-out task';

/** `from`: a run directory, a store, or a JSONL file. Throws DATASET_INVALID if nothing in it can be taught. */
export async function readDemonstrations(from: string, options: TeachOptions): Promise<Demonstrations> {
  const left = new Map<string, number>();
  const leave = (why: string, n = 1): void => void (n > 0 && left.set(why, (left.get(why) ?? 0) + n));
  const samples: Sample[] = [];
  let conversations = 0;
  const isFile = ['.jsonl', '.csv', '.parquet'].includes(extname(from).toLowerCase());
  for await (const demonstration of isFile ? conversationsIn(from, options, leave) : successesIn(from, options, leave)) {
    const own = samplesOf(demonstration, options, leave);
    samples.push(...own);
    conversations += own.length > 0 ? 1 : 0;
  }
  const leftOut = Object.fromEntries([...left].toSorted(([, a], [, b]) => b - a));
  if (samples.length === 0) throw nothingToTeach(from, leftOut);
  return { samples, conversations, tasks: new Set(samples.map(({ groupId }) => groupId)).size, leftOut };
}

function nothingToTeach(from: string, leftOut: Demonstrations['leftOut']): TrainyardError {
  const why = Object.entries(leftOut).map(([reason, n]) => `${n} ${reason}`);
  const found = `${from} holds nothing to teach: ${why.join('; ') || 'it has no rollouts'}`;
  const collect = 'trainyard eval <entry> --held-out train.jsonl --engine openai --model NAME --run <dir>';
  const isHeldOut = (leftOut[HELD_OUT] ?? 0) > 0;
  const hint = isHeldOut
    ? `collect successes on the tasks to train on, not on the held-out ones: ${collect}`
    : `collect successes of a model that solves the tasks: ${collect}`;
  return new TrainyardError('DATASET_INVALID', found, { hint });
}

function samplesOf(
  { id, task, calls, turns = [] }: Demonstration,
  { renderer, contextLength }: TeachOptions,
  leave: (why: string, n?: number) => void,
): readonly Sample[] {
  const isOwn = turns.length > 0 && areOwn(renderer, turns);
  const taught: TaughtTurns = isOwn ? { turns: ownTurns(turns), unsaid: [] } : taughtTurns(renderer, calls);
  for (const why of taught.unsaid) leave(why);
  const all = stitch(taught.turns, { advantageOf: () => 1, weight: 1, rolloutId: id, groupId: task });
  const fitting = all.filter(({ tokens }) => tokens.length <= contextLength);
  leave(`longer than the context of ${contextLength} tokens`, all.length - fitting.length);
  return fitting;
}

async function* successesIn(
  run: string,
  { heldOut = [] }: TeachOptions,
  leave: (why: string) => void,
): AsyncGenerator<Demonstration> {
  await using store = await openStoreOf(run);
  const marks = await store.marks();
  const asked = heldOutTest(heldOut, recordedTasks(run));
  for (const kept of await store.query()) {
    const { rolloutId: id, taskId: task } = kept;
    const [trajectory] = withoutExcluded([kept], exclusionsOf(new Set([id]), marks));
    const turns = trajectory?.turns.filter(({ trainable, request }) => trainable && request.messages.length > 0) ?? [];
    if (trajectory === undefined) leave('excluded by curation');
    else if (!isSuccess(trajectory)) leave('not a success');
    else if (asked(task, turns[0]?.request.messages ?? [])) leave(HELD_OUT);
    else yield { id, task, calls: turns, turns };
  }
}

/** Digests of an evaluation's tasks, by id: ids alone may name other tasks in another file. */
function recordedTasks(run: string): ReadonlyMap<string, string> | undefined {
  if (!existsSync(run) || !statSync(run).isDirectory() || !existsSync(join(run, 'run.json'))) return undefined;
  const record = readRunFile(run, 'FILE_NOT_FOUND');
  if (!isEvaluation(record)) return undefined;
  return new Map((record as EvaluationRecord).tasks.map(({ id, digest }) => [id, digest]));
}

/** By the recorded digest where there is one, else by id; or because the conversation says every message of the task's prompt. */
function heldOutTest(heldOut: readonly Task[], recorded?: ReadonlyMap<string, string>) {
  const digests = new Map(heldOut.map((task) => [task.id, digestOf([JSON.stringify(task)])]));
  const prompts = heldOut.map(({ prompt }) => prompt.map(({ content }) => content));
  return (taskId: string | undefined, messages: readonly Message[]): boolean => {
    if (heldOut.length === 0) return false;
    const digest = taskId === undefined ? undefined : digests.get(taskId);
    if (digest !== undefined && (recorded?.get(taskId!) ?? digest) === digest) return true;
    const said = new Set(messages.map(({ content }) => content));
    return prompts.some((prompt) => prompt.every((content) => said.has(content)));
  };
}

/** Every assistant message of a conversation is taught, unless its `weight` is 0. */
async function* conversationsIn(
  path: string,
  { heldOut = [] }: TeachOptions,
  leave: (why: string) => void,
): AsyncGenerator<Demonstration> {
  const asked = heldOutTest(heldOut);
  for await (const row of readRows(path)) {
    const { place } = row;
    if (row.kind === 'bad') throw unreadable(path, `${place}${row.problem}`);
    const conversation = conversationOf(row.row, (found) => unreadable(path, `${place}: ${found}`));
    if (asked(undefined, conversation.messages)) leave(HELD_OUT);
    else yield { id: place, task: place, calls: callsIn(conversation) };
  }
}

interface Conversation {
  readonly messages: readonly Message[];
  readonly tools: readonly Tool[];
  /** Places of the messages that are taught. */
  readonly taught: readonly number[];
}

function conversationOf(row: Readonly<Record<string, unknown>>, refuse: (found: string) => Error): Conversation {
  const { messages, tools } = row;
  const given = Array.isArray(messages) ? messages : [];
  try {
    const { request } = chat.read({ model: 'policy', messages, ...(tools == null ? {} : { tools }) }, {});
    const taught = request.messages.flatMap(({ role }, i) => (role === 'assistant' && given[i]?.weight !== 0 ? [i] : []));
    if (taught.length > 0) return { messages: request.messages, tools: request.tools, taught };
  } catch (thrown) {
    throw refuse(thrown instanceof Error ? thrown.message : String(thrown));
  }
  throw refuse('found no assistant message to teach');
}

function callsIn({ messages, tools, taught }: Conversation): readonly AnsweredCall[] {
  return taught.map((place, index) => ({
    ...{ index, thread: 'main', role: 'default', stopReason: 'stop' as const },
    request: { messages: messages.slice(0, place), tools },
    response: messages[place]!,
  }));
}

function unreadable(path: string, found: string): TrainyardError {
  return new TrainyardError('DATASET_INVALID', `${path}, ${found}`, {
    hint: 'a line is {"messages": [{"role", "content", "tool_calls"?, "weight"?}, …], "tools"?: […]}: docs/guide/16-warm-start.md',
  });
}
