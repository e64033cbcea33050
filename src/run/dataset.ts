/**
 * Task files: one JSON object a line,
 * `{id?, prompt | system_prompt?+user_prompt, answer | ground_truth | label?, metadata?}`.
 *
 * `prompt` is text or a list of messages. All bad lines are found before anything runs; the first is reported with its number.
 */
import { readFile } from 'node:fs/promises';
import { z } from 'zod';
import { TrainyardError } from '../core/errors.ts';
import type { Json, Message, Task } from '../core/types.ts';

const message = z.object({
  role: z.enum(['system', 'user', 'assistant', 'tool']),
  content: z.string().nullable(),
  name: z.string().optional(),
});
const row = z.strictObject({
  id: z.union([z.string().min(1), z.int()]).optional(),
  prompt: z.union([z.string().min(1), z.array(message).min(1)]).optional(),
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
      hint: 'give the path of a JSONL file',
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
    throw invalid(`${where} is not JSON: ${line.slice(0, 60)}`, cause);
  }
  const parsed = row.safeParse(raw);
  if (!parsed.success) {
    const issue = parsed.error.issues[0];
    throw invalid(`${where}: ${issue?.path.join('.') || 'the row'}: ${issue?.message ?? 'invalid'}`);
  }
  const { id, metadata } = parsed.data;
  const answer = parsed.data.answer ?? parsed.data.ground_truth ?? parsed.data.label;
  return {
    id: String(id ?? `line-${number}`),
    prompt: promptOf(parsed.data, where),
    ...(answer === undefined ? {} : { answer: answer as Json }),
    ...(metadata === undefined ? {} : { metadata: metadata as Json }),
  };
}

function promptOf(data: z.infer<typeof row>, where: string): readonly Message[] {
  const { prompt, system_prompt, user_prompt } = data;
  if ((prompt === undefined) === (user_prompt === undefined)) {
    throw invalid(`${where}: expected either prompt or user_prompt, found ${prompt === undefined ? 'neither' : 'both'}`);
  }
  const system: Message[] = system_prompt === undefined ? [] : [{ role: 'system', content: system_prompt }];
  const asked =
    typeof prompt === 'object'
      ? (prompt as readonly Message[])
      : [{ role: 'user' as const, content: prompt ?? user_prompt ?? '' }];
  return [...system, ...asked];
}

function invalid(message: string, cause?: unknown): TrainyardError {
  return new TrainyardError('DATASET_INVALID', message, {
    cause,
    hint: 'each line is {"id"?, "prompt" | "system_prompt"?+"user_prompt", "answer"?, "metadata"?}',
  });
}
