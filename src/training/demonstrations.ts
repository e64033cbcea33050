/**
 * Reads what a policy is to be taught: the successful rollouts of a run, whichever model made them, or a file of conversations in OpenAI's
 * fine-tuning format. Gives samples in the policy's own tokens, grouped by task. Everything that is left out is counted by its reason.
 * Rollouts of held-out tasks are left out: a policy that was shown the answers would be measured on its memory.
 */
import { existsSync, statSync } from 'node:fs';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { exclusionsOf, isSuccess, withoutExcluded } from '../core/turns.ts';
import type { Message, Sample, Task, Tool, Trajectory, Turn } from '../core/types.ts';
import { chat } from '../gateway/dialects/chat.ts';
import { openStoreOf } from '../run/run-store.ts';
import { readRows } from '../tasks/tasks.ts';
import type { Renderer } from '../tokens/renderer.ts';
import { stitch } from '../tokens/stitch.ts';
import { type AnsweredCall, areOwn, ownTurns, type TaughtTurns, taughtTurns } from '../tokens/taught-turns.ts';

export interface Demonstrations {
  /** Weight and advantage 1; `groupId` is the task. */
  readonly samples: readonly Sample[];
  readonly conversations: number;
  readonly tasks: number;
  /** How many were left out, by reason. */
  readonly leftOut: Readonly<Record<string, number>>;
}

interface TeachOptions {
  readonly renderer: Renderer;
  readonly contextLength: number;
  /** Tasks that the policy will be measured on, and those that it will be trained on. */
  readonly heldOut?: readonly Task[];
  readonly tasks?: readonly Task[];
}

/** One rollout or one conversation of a file. */
interface Demonstration {
  readonly id: string;
  readonly task: string;
  readonly calls: readonly AnsweredCall[];
  /** The same as turns, if this policy's tokenizer and template made them. */
  readonly own: readonly Turn[] | undefined;
}

/** Counts what is left out, by reason. */
type Leave = (why: string, n?: number) => void;

const HELD_OUT = 'of a held-out task';

/** `from`: a run directory, a store, or a JSONL file. Throws DATASET_INVALID if nothing in it can be taught. */
export async function readDemonstrations(from: string, options: TeachOptions): Promise<Demonstrations> {
  const left = new Map<string, number>();
  const leave: Leave = (why, n = 1) => void (n > 0 && left.set(why, (left.get(why) ?? 0) + n));
  const samples: Sample[] = [];
  let conversations = 0;
  if (!existsSync(from)) {
    const hint = 'give the directory of a run, or a JSONL file of conversations';
    throw new TrainyardError('FILE_NOT_FOUND', `${from} does not exist`, hint);
  }
  for await (const demonstration of isTextFile(from)
    ? conversationsIn(from, options, leave)
    : successesIn(from, options, leave)) {
    const own = samplesOf(demonstration, options, leave);
    samples.push(...own);
    conversations += own.length > 0 ? 1 : 0;
  }
  const leftOut = Object.fromEntries([...left].toSorted(([, a], [, b]) => b - a));
  if (samples.length === 0) throw nothingToTeach(from, leftOut);
  return { samples, conversations, tasks: new Set(samples.map(({ groupId }) => groupId)).size, leftOut };
}

/** Files that are no store hold conversations. */
function isTextFile(path: string): boolean {
  return existsSync(path) && statSync(path).isFile() && !/\.(sqlite3?|db)$/i.test(path);
}

function nothingToTeach(from: string, leftOut: Demonstrations['leftOut']): TrainyardError {
  const why = Object.entries(leftOut).map(([reason, n]) => `${n} ${reason}`);
  const found = `${from} holds nothing to teach: ${why.join('; ') || 'it has no rollouts'}`;
  const collect = 'trainyard eval <entry> --held-out <file with training tasks> --engine openai --model NAME --run <dir>';
  const isHeldOut = (leftOut[HELD_OUT] ?? 0) > 0;
  const hint = isHeldOut
    ? `collect successes on the tasks to train on, not on the held-out ones: ${collect}`
    : `collect successes of a model that solves the tasks: ${collect}`;
  return new TrainyardError('DATASET_INVALID', found, hint);
}

function samplesOf({ id, task, calls, own }: Demonstration, options: TeachOptions, leave: Leave): readonly Sample[] {
  const { renderer, contextLength } = options;
  const taught: TaughtTurns = own === undefined ? taughtTurns(renderer, calls) : { turns: ownTurns(own), unsaid: [] };
  for (const why of taught.unsaid) leave(why);
  const all = stitch(taught.turns, { advantageOf: () => 1, weight: 1, rolloutId: id, groupId: task });
  const fitting = all.filter(({ tokens }) => tokens.length <= contextLength);
  leave(`longer than the context of ${contextLength} tokens`, all.length - fitting.length);
  return fitting;
}

async function* successesIn(run: string, options: TeachOptions, leave: Leave): AsyncGenerator<Demonstration> {
  await using store = await openStoreOf(run);
  const marks = await store.marks();
  const isHeldOut = heldOutTest(options);
  // Of a training run, the rollouts of its evaluations are of held-out tasks.
  const trains = (await store.count({ purpose: 'train', limit: 1 })) > 0;
  for (const groupId of await store.groupIds({})) {
    for (const kept of await store.query({ groupId })) {
      const { rolloutId: id, taskId: task } = kept;
      const [trajectory] = withoutExcluded([kept], exclusionsOf(new Set([id]), marks));
      if (trajectory === undefined) leave('excluded by curation');
      else if (trains && kept.purpose === 'eval') leave('of an evaluation during the training');
      else if (!isSuccess(trajectory)) leave('not a success');
      else {
        const turns = taughtIn(trajectory, leave);
        if (isHeldOut(task, turns[0]?.request.messages ?? [])) leave(HELD_OUT);
        else if (turns.length > 0)
          yield { id, task, calls: turns, own: areOwn(options.renderer, kept.turns) ? turns : undefined };
      }
    }
  }
}

/** The responses of trained roles and threads, less those that have a reward of their own and earned nothing. */
function taughtIn({ turns, grade }: Trajectory, leave: Leave): readonly Turn[] {
  const { untrained = [], byTurn = {} } = grade.kind === 'graded' ? grade.reward : {};
  const trained = turns.filter(({ trainable, thread }) => trainable && !untrained.includes(thread));
  const earning = trained.filter(({ index }) => (byTurn[index] ?? 1) > 0);
  const asked = earning.filter(({ request }) => request.messages.length > 0);
  leave('responses that earned nothing', trained.length - earning.length);
  leave('responses asked for in tokens, without messages', earning.length - asked.length);
  if (trained.length === 0) leave('without a response of a trained role');
  return asked;
}

/**
 * Whether a conversation is of a held-out task: by the task's id, unless it holds the prompt of a training task of that id; or because it
 * holds the prompt of a held-out task, alone or in other words. Rather too much is left out than too little: it is counted.
 */
export function heldOutTest({ heldOut = [], tasks = [] }: Pick<TeachOptions, 'heldOut' | 'tasks'>) {
  const ids = new Set(heldOut.map(({ id }) => id));
  const trained = new Map(tasks.map((task) => [task.id, task]));
  return (taskId: string | undefined, messages: readonly Message[]): boolean => {
    const said = messages.map(({ content }) => spaced(content ?? ''));
    const asks = ({ prompt }: Task): boolean => {
      const questions = prompt.filter(({ role }) => role === 'user').map(({ content }) => spaced(content));
      return questions.some((one) => one !== '') && questions.every((one) => said.some((text) => hasWords(text, one)));
    };
    const own = taskId === undefined ? undefined : trained.get(taskId);
    return (taskId !== undefined && ids.has(taskId) && !(own && asks(own))) || heldOut.some(asks);
  };
}

function spaced(text: string): string {
  return text.replaceAll(/\s+/g, ' ').trim();
}

/** Not inside a longer word or number: a question about 1+1 does not hold out one about 11+11. */
function hasWords(text: string, words: string): boolean {
  for (let at = text.indexOf(words); at !== -1; at = text.indexOf(words, at + 1)) {
    const before = text[at - 1] ?? '';
    const after = text[at + words.length] ?? '';
    const isInside = (one: string, next: string): boolean => /[\p{L}\p{N}]/u.test(one) && /[\p{L}\p{N}]/u.test(next);
    if (!isInside(before, words[0]!) && !isInside(after, words.at(-1)!)) return true;
  }
  return false;
}

/** Every assistant message of a conversation is taught, unless its `weight` is 0. Conversations with the same beginning are one task. */
async function* conversationsIn(path: string, options: TeachOptions, leave: Leave): AsyncGenerator<Demonstration> {
  const isHeldOut = heldOutTest(options);
  for await (const row of readRows(path)) {
    const { place } = row;
    if (row.kind === 'bad') throw unreadable(path, `${place}${row.problem}`);
    const conversation = conversationOf(row.row, (found) => unreadable(path, `${place}: ${found}`));
    const { messages, taught } = conversation;
    const task = JSON.stringify(
      messages.slice(
        0,
        messages.findIndex(({ role }) => role === 'assistant'),
      ),
    );
    if (isHeldOut(undefined, messages)) leave(HELD_OUT);
    else if (taught.length === 0) leave('with weight 0 for every response');
    else yield { id: place, task, calls: callsIn(conversation), own: undefined };
  }
}

interface Conversation {
  readonly messages: readonly Message[];
  readonly tools: readonly Tool[];
  /** Places of the messages that are taught. */
  readonly taught: readonly number[];
}

function conversationOf(row: Readonly<Record<string, unknown>>, refuse: (found: string) => Error): Conversation {
  const { messages, tools, functions } = row;
  if (messages === undefined && row['prompt'] !== undefined)
    throw refuse('found a task, expected a conversation: tasks have no responses to teach');
  const given = Array.isArray(messages) ? messages : [];
  const weights = given.map((message) => message?.weight ?? 1);
  const odd = weights.find((weight) => weight !== 0 && weight !== 1);
  if (odd !== undefined) throw refuse(`weight: expected 0 or 1, found ${JSON.stringify(odd)}`);
  if (functions !== undefined) throw refuse('functions: expected tools, the form that took their place');
  try {
    const { request } = chat.read({ model: 'policy', messages, ...(tools == null ? {} : { tools }) }, {});
    const said = request.messages.flatMap(({ role }, i) => (role === 'assistant' ? [i] : []));
    const taught = said.filter((place) => weights[place] === 1);
    if (said.length > 0) return { messages: request.messages, tools: request.tools, taught };
  } catch (thrown) {
    throw refuse(messageOf(thrown));
  }
  throw refuse('found no assistant message to teach');
}

function callsIn({ messages, tools, taught }: Conversation): readonly AnsweredCall[] {
  return taught.map((place, index) => ({
    index,
    thread: 'main',
    role: 'default',
    stopReason: 'stop' as const,
    request: { messages: messages.slice(0, place), tools },
    response: messages[place]!,
  }));
}

function unreadable(path: string, found: string): TrainyardError {
  return new TrainyardError(
    'DATASET_INVALID',
    `${path}, ${found}`,
    'a line is {"messages": [{"role", "content", "tool_calls"?, "weight"?}, …], "tools"?: […]}: trainyard help guide/train',
  );
}
