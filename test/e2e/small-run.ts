/** A folder with an agent, tasks and flags for a run of a few seconds. */
import { join } from 'node:path';
import { afterAll, beforeAll } from 'vitest';
import type { Store } from '../../src/core/contracts.ts';
import { scratch } from '../cli/command.ts';

export const CANARY = 'CANARY-93c1e7';
/** Rewards look random to the policy, so that they differ within groups to the end; everything the workflow can see is written down. */
const ENTRY = `
import { appendFileSync } from 'node:fs';
import OpenAI from 'openai';
import { currentRollout, defineGrader, defineWorkflow } from 'trainyard';
const seen = (value: unknown) => appendFileSync(new URL('./seen.txt', import.meta.url), JSON.stringify(value) + '\\n');
export default defineWorkflow(async (ctx) => {
  const model = ctx.model();
  seen([ctx, ctx.task, currentRollout(), process.env, process.argv, process.execArgv]);
  const client = new OpenAI({ baseURL: model.baseURL, apiKey: model.apiKey });
  const messages: any[] = [...ctx.prompt];
  for (let turn = 0; turn < 2; turn++) {
    const reply = await client.chat.completions.create({ model: model.name, messages, max_tokens: 12 });
    seen(reply);
    messages.push({ role: 'assistant', content: reply.choices[0]!.message.content ?? '' }, { role: 'user', content: 'and?' });
  }
  return 'finished';
});
export const grader = defineGrader(({ task, messages, output }) => {
  if (task.answer !== '${CANARY}' || output !== 'finished') throw new Error('the grader must see answer and output');
  const sum = [...(messages.at(-1)?.content ?? '')].reduce((codes, letter) => codes + (letter.codePointAt(0) ?? 0), 0);
  return (sum % 3) / 2;
});
`;

export interface Home extends Awaited<ReturnType<typeof scratch>> {
  readonly entry: string;
  /** `train` with everything it needs. */
  flags(run: string, steps: number): string[];
}

export async function smallHome(): Promise<Home> {
  const home = await scratch();
  const entry = await home.write('agent.ts', ENTRY);
  const line = (i: number) => JSON.stringify({ id: `t${i}`, prompt: `Question ${i}?`, answer: CANARY, metadata: { i } });
  await home.write('train.jsonl', Array.from({ length: 8 }, (_, i) => line(i)).join('\n'));
  await home.write('held-out.jsonl', Array.from({ length: 5 }, (_, i) => line(100 + i)).join('\n'));
  const small = ['--groups-per-step', '2', '--group', '4'];
  return { ...home, entry, flags: (run, steps) => ['train', entry, '--run', join(run), '--steps', `${steps}`, ...small] };
}

/** One for all tests of a file. */
export function useSmallHome(): Omit<Home, 'remove'> {
  const home = {} as Home;
  beforeAll(async () => void Object.assign(home, await smallHome()));
  afterAll(() => home.remove());
  return home;
}

/** The store, with some of what it does done otherwise. */
export const storeWith = (store: Store, changed: Partial<Store>): Store => ({
  append: (trajectory) => store.append(trajectory),
  read: (id) => store.read(id),
  query: (filter) => store.query(filter),
  count: (filter) => store.count(filter),
  groupIds: (filter) => store.groupIds(filter),
  summaries: (after, limit) => store.summaries(after, limit),
  commit: (manifest) => store.commit(manifest),
  manifests: (after) => store.manifests(after),
  mark: (marks) => store.mark(marks),
  marks: () => store.marks(),
  [Symbol.asyncDispose]: () => store[Symbol.asyncDispose](),
  ...changed,
});
