/**
 * Task files: one JSON object a line,
 * `{id?, prompt | system_prompt?+user_prompt, answer | ground_truth | label?, metadata?}`.
 *
 * `prompt` is text or a list of messages. All bad lines are found before anything runs; the first is reported with its number.
 */
import { readFile } from 'node:fs/promises';
import { z } from 'zod';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { MAX_NESTING, nestingOf } from '../core/json.ts';
import type { Json, PromptMessage, Task } from '../core/types.ts';

const messages = z.array(z.strictObject({ role: z.enum(['system', 'user', 'assistant']), content: z.string() })).min(1);
const row = z.strictObject({
  id: z.union([z.string().regex(/^[^\p{C}]{1,200}$/u, 'expected 1 to 200 printable characters'), z.int()]).optional(),
  prompt: z.unknown().optional(),
  system_prompt: z.string().optional(),
  user_prompt: z.string().min(1).optional(),
  answer: z.unknown().optional(),
  ground_truth: z.unknown().optional(),
  label: z.unknown().optional(),
  metadata: z.unknown().optional(),
});

export async function readTasks(path: string): Promise<readonly Task[]> {
  const bytes = await readFile(path).catch((cause: unknown) => {
    throw new TrainyardError('FILE_NOT_FOUND', `cannot read the task file ${path}`, {
      cause,
      hint: 'put the tasks beside the entry as train.jsonl and held-out.jsonl, or name them with --tasks and --held-out (format: docs/reference/tasks.md)',
    });
  });
  const text = decode(bytes, path);
  const tasks: Task[] = [];
  const lines = new Map<string, number>();
  text.split('\n').forEach((line, index) => {
    if (line.trim() === '') return;
    const number = index + 1;
    const task = toTask(line, `${path} line ${number}`, number);
    const earlier = lines.get(task.id);
    if (earlier !== undefined)
      throw invalid(`${path} line ${number}: id ${JSON.stringify(task.id)} is already used on line ${earlier}`);
    lines.set(task.id, number);
    tasks.push(task);
  });
  if (tasks.length === 0) throw invalid(`${path} holds no task`);
  return tasks;
}

function decode(bytes: Uint8Array, path: string): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch (cause) {
    throw invalid(`${path} is not UTF-8`, cause);
  }
}

function toTask(line: string, where: string, number: number): Task {
  if (nestingOf(line) > MAX_NESTING) throw invalid(`${where}: nested deeper than ${MAX_NESTING} levels`);
  let raw: unknown;
  try {
    raw = JSON.parse(line.replace(/^\uFEFF/, ''));
  } catch (cause) {
    throw invalid(`${where} is not valid JSON${positionIn(cause)}`, cause);
  }
  const data = check(row, raw, where);
  const { id, metadata } = data;
  const answer = answerOf(data, where);
  return {
    id: String(id ?? `line-${number}`),
    prompt: promptOf(data, where),
    ...(answer === undefined ? {} : { answer: answer as Json }),
    ...(metadata === undefined ? {} : { metadata: metadata as Json }),
  };
}

function answerOf(data: z.infer<typeof row>, where: string): Json | undefined {
  const given = (['answer', 'ground_truth', 'label'] as const).filter((key) => data[key] !== undefined);
  if (given.length > 1) throw invalid(`${where}: expected one of answer, ground_truth and label, found ${given.join(' and ')}`);
  return given[0] === undefined ? undefined : (data[given[0]] as Json);
}

/** Where the mistake is, without the text around it: that may be an answer. */
function positionIn(cause: unknown): string {
  const position = /position (\d+)/.exec(messageOf(cause))?.[1];
  return position === undefined ? '' : ` (at character ${Number(position) + 1})`;
}

function promptOf({ prompt, system_prompt, user_prompt }: z.infer<typeof row>, where: string): PromptMessage[] {
  if ((prompt === undefined) === (user_prompt === undefined)) {
    throw invalid(`${where}: expected either prompt or user_prompt, found ${prompt === undefined ? 'neither' : 'both'}`);
  }
  const asked = prompt ?? user_prompt;
  if (asked === '' || (typeof asked !== 'string' && !Array.isArray(asked))) {
    throw invalid(`${where}: prompt: expected text or a list of messages, found ${JSON.stringify(asked).slice(0, 40)}`);
  }
  const said: PromptMessage[] =
    typeof asked === 'string'
      ? [{ role: 'user', content: asked }]
      : check(z.object({ prompt: messages }), { prompt: asked }, where).prompt;
  return system_prompt === undefined ? said : [{ role: 'system', content: system_prompt }, ...said];
}

function check<T>(schema: z.ZodType<T>, value: unknown, where: string): T {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0];
  const place = issue?.path.length ? `${issue.path.join('.')}: ` : '';
  throw invalid(`${where}: ${place}${issue?.message ?? 'not a task'}`);
}

function invalid(message: string, cause?: unknown): TrainyardError {
  return new TrainyardError('DATASET_INVALID', message, {
    cause,
    hint: 'each line is {"id"?, "prompt" | "system_prompt"?+"user_prompt", "answer"?, "metadata"?}',
  });
}
