/**
 * Task files: one JSON object a line,
 * `{id?, prompt | system_prompt?+user_prompt, answer | ground_truth | label?, metadata?}`.
 *
 * `prompt` is text or a list of messages. All bad lines are found before anything runs; the first is reported with its number.
 */
import { readFile } from 'node:fs/promises';
import { z } from 'zod';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Json, PromptMessage, Task } from '../core/types.ts';

const messages = z.array(z.strictObject({ role: z.enum(['system', 'user', 'assistant']), content: z.string() })).min(1);
const row = z.strictObject({
  id: z.union([z.string().min(1), z.int()]).optional(),
  prompt: z.unknown().optional(),
  system_prompt: z.string().optional(),
  user_prompt: z.string().min(1).optional(),
  answer: z.json().optional(),
  ground_truth: z.json().optional(),
  label: z.json().optional(),
  metadata: z.json().optional(),
});

export async function readTasks(path: string): Promise<readonly Task[]> {
  const text = await readFile(path, 'utf8').catch((cause: unknown) => {
    throw new TrainyardError('FILE_NOT_FOUND', `cannot read the task file ${path}`, {
      cause,
      hint: 'put the tasks beside the entry as train.jsonl and held-out.jsonl, or name them with --tasks and --held-out (format: docs/reference/tasks.md)',
    });
  });
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

function toTask(line: string, where: string, number: number): Task {
  let raw: unknown;
  try {
    raw = JSON.parse(line.replace(/^\uFEFF/, ''));
  } catch (cause) {
    throw invalid(`${where} is not JSON: ${messageOf(cause)}`, cause);
  }
  const data = check(row, raw, where);
  const { id, metadata } = data;
  const answer = data.answer ?? data.ground_truth ?? data.label;
  return {
    id: String(id ?? `line-${number}`),
    prompt: promptOf(data, where),
    ...(answer === undefined ? {} : { answer: answer as Json }),
    ...(metadata === undefined ? {} : { metadata: metadata as Json }),
  };
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
