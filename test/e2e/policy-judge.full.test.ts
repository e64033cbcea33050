/** The run's own policy as a judge: asked through the real gateway, never stored, never trained. */
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Grader, GraderModel } from '../../src/core/contracts.ts';
import { defineGrader, defineWorkflow } from '../../src/core/define.ts';
import type { Trajectory } from '../../src/core/types.ts';
import { Gateway, listen } from '../../src/gateway/gateway.ts';
import { graderInput } from '../../src/grader/call.ts';
import { inlineGrader } from '../../src/grader/inline.ts';
import { judge } from '../../src/graders/judge.ts';
import { runRollout } from '../../src/rollout/runner.ts';
import { withPolicy } from '../../src/run/open-policy.ts';
import { memoryStore } from '../../src/store/memory.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { scriptedEngine } from '../../src/testing/trajectories.ts';
import { createRenderer } from '../../src/tokens/renderer.ts';
import { loadTokenizer, type Tokenizer } from '../../src/tokens/tokenizer.ts';
import { makeBatch } from '../../src/trainer/batch.ts';
import { scratch, trainyard } from '../cli/command.ts';

let tokenizer: Tokenizer;
beforeAll(async () => {
  tokenizer = await loadTokenizer(new URL('../../models/base', import.meta.url).pathname);
});

interface Judged {
  readonly trajectory: Trajectory;
  readonly stored: number;
  readonly openSessions: number;
  readonly prompts: readonly string[];
  readonly seeds: readonly number[];
}

/** One rollout of an agent that says "fine"; `says` is what the policy says as a judge, the n-th time it is asked. */
async function judged(
  grader: Grader,
  says: (prompt: string, call: number) => string,
  { versions = [], after }: { readonly versions?: readonly number[]; readonly after?: () => Promise<void> } = {},
): Promise<Judged> {
  const prompts: string[] = [];
  const engine = scriptedEngine({
    vocabSize: 640,
    contextLength: 8192,
    reply: ({ promptIds }, call) => {
      const prompt = tokenizer.decode(promptIds);
      prompts.push(prompt);
      engine.policyVersion = versions[call] ?? 0;
      return [...tokenizer.encodeRendered(`${call === 0 ? 'fine' : says(prompt, call)}<|im_end|>`)];
    },
  });
  const gateway = new Gateway({ engine, renderer: createRenderer(tokenizer), modelName: 'policy' });
  await using _listener = await listen(gateway);
  await using store = memoryStore();
  const { signal } = new AbortController();
  const trajectory = await runRollout(
    {
      workflow: defineWorkflow(async (ctx) => (await ctx.model().generate({ messages: ctx.prompt })).text),
      sessions: gateway,
      grader: withPolicy(inlineGrader(grader), grader, { sessions: gateway, seed: 3, signal }),
      graderInput,
      store,
      limits: { turns: 1, tokens: 40, deadlineMs: 20_000 },
      seed: 3,
      clock: { now: Date.now },
      signal,
    },
    {
      identity: { rolloutId: 'r', groupId: 'g', taskId: 't', purpose: 'train' },
      task: { id: 't', prompt: [{ role: 'user', content: 'How are you?' }], answer: 'GOLD' },
      sampling: { temperature: 1, topP: 1, topK: 0, maxTokens: 20 },
    },
  );
  await after?.();
  const seeds = engine.requests.map(({ seed }) => seed);
  return { trajectory, stored: await store.count(), openSessions: gateway.openSessions, prompts, seeds };
}

const verdictFor = (prompt: string, score: number): string =>
  JSON.stringify({ check: /"check": "(\w+)"/.exec(prompt)?.[1], reason: 'because', score });
const kind = judge({ model: 'policy', instructions: 'Is it kind?', backoffMs: 1 });

describe('the policy as a judge', () => {
  it('gives a verdict that is no turn of the rollout, within limits of its own', async () => {
    const { trajectory, stored, openSessions, prompts } = await judged(kind, (prompt) => verdictFor(prompt, 0.5));
    expect(trajectory.grade).toMatchObject({
      kind: 'graded',
      reward: { value: 0.5, metrics: { calls: 1, 'judge.version': 0, 'judge.versions': 1 } },
    });
    expect(trajectory.outcome).toEqual({ kind: 'completed' });
    expect(trajectory.turns.map(({ response }) => response.content)).toEqual(['fine']);
    expect({ stored, openSessions }).toEqual({ stored: 1, openSessions: 0 });
    expect(prompts).toHaveLength(2);
    expect(prompts[1]).toContain('Is it kind?');
    expect(prompts.join()).not.toContain('GOLD');
  });

  it('that gives no verdict leaves the rollout without a reward, and no session behind', async () => {
    const { trajectory, openSessions } = await judged(kind, () => 'I like it');
    expect(trajectory.grade).toMatchObject({ kind: 'failed', code: 'GRADER_UNSCORABLE' });
    expect(openSessions).toBe(0);
  });

  it('says with which version it judged, and when there were several', async () => {
    const says = (prompt: string, call: number): string => (call === 1 ? 'hm' : verdictFor(prompt, 1));
    // A version is taken when a call begins, and set here while the one before is answered.
    const { trajectory } = await judged(kind, says, { versions: [4, 5] });
    expect(trajectory.grade).toMatchObject({ reward: { metrics: { 'judge.version': 5, 'judge.versions': 2 } } });
    expect(trajectory.turns.map(({ policyVersion }) => policyVersion)).toEqual([0]);
  });

  it('is asked with the same seeds for the same rollout, whenever that is', async () => {
    const asking = defineGrader({ asksPolicy: true, grade: async (_, { model }) => (await completionOf(model, 'and?')).length });
    const [one, two] = [await judged(asking, () => 'ab'), await judged(asking, () => 'ab')];
    expect(one.trajectory.grade).toMatchObject({ reward: { value: 2 } });
    expect(one.seeds[1]).toBe(two.seeds[1]);
  });

  it('cannot be asked any more once the grading is over', async () => {
    let kept: GraderModel | undefined;
    const keeping = defineGrader({
      asksPolicy: true,
      grade: async (_, { model }) => {
        kept = model;
        await completionOf(model, 'first');
        return 1;
      },
    });
    const after = (): Promise<void> => expect(completionOf(kept, 'second')).rejects.toThrow(/^answered 4\d\d$/);
    await judged(keeping, () => 'yes', { after });
    expect(kept).toMatchObject({ name: 'policy', baseURL: expect.stringMatching(/\/r\/judge-/) });
  });

  it('is not there for graders that do not ask for it', async () => {
    const plain = defineGrader({ grade: (_, { model }) => (model === undefined ? 1 : 0) });
    expect((await judged(plain, () => '')).trajectory.grade).toEqual({ kind: 'graded', reward: { value: 1 } });
  });
});

async function completionOf(model: GraderModel | undefined, content: string): Promise<string> {
  const response = await fetch(`${model?.baseURL}/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${model?.apiKey}`, 'content-type': 'application/json' },
    body: JSON.stringify({ model: model?.name, messages: [{ role: 'user', content }] }),
  });
  if (!response.ok) throw new Error(`answered ${response.status}`);
  const { choices } = (await response.json()) as { choices: { message: { content: string } }[] };
  return choices[0]!.message.content;
}

const ENTRY = `
import { defineGrader, defineWorkflow } from 'trainyard';
export default defineWorkflow(async (ctx) => {
  const { text } = await ctx.model().generate({ messages: ctx.prompt, maxTokens: 12 });
  return text;
});
export const grader = defineGrader({
  asksPolicy: true,
  async grade({ output }, { model, signal }) {
    const response = await fetch(model.baseURL + '/chat/completions', {
      method: 'POST',
      signal,
      headers: { authorization: 'Bearer ' + model.apiKey, 'content-type': 'application/json' },
      body: JSON.stringify({ model: model.name, temperature: 0, max_tokens: 8, messages: [{ role: 'user', content: 'Good? ' + output }] }),
    });
    if (!response.ok) throw new Error(await response.text());
    const said = (await response.json()).choices[0].message.content ?? '';
    const sum = [...said, ...String(output)].reduce((codes, letter) => codes + letter.codePointAt(0), 0);
    return (sum % 3) / 2;
  },
});
`;

describe('a run whose grader asks its policy', () => {
  let home: Awaited<ReturnType<typeof scratch>>;
  let entry: string;
  let tasks: string;
  beforeAll(async () => {
    home = await scratch();
    entry = await home.write('agent.ts', ENTRY);
    const lines = Array.from({ length: 6 }, (_, i) => JSON.stringify({ id: `t${i}`, prompt: `Question ${i}?` }));
    tasks = await home.write('tasks.jsonl', lines.join('\n'));
  });
  afterAll(() => home.remove());

  it('trains on what the agent sampled and nothing else, judged by one version at a time', async () => {
    const run = join(home.dir, 'run');
    const small = ['--steps', '2', '--groups-per-step', '2', '--group', '4', '--tasks', tasks, '--held-out', tasks];
    const { code, stderr } = await trainyard('train', entry, ...small, '--run', run, '--json');
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    await using store = await openSqliteStore(join(run, 'store.sqlite'));
    const trajectories = await store.query();
    const judgedBy = trajectories.map(({ grade }) => (grade.kind === 'graded' ? grade.reward.metrics : grade));
    for (const metrics of judgedBy) expect(metrics).toMatchObject({ 'judge.version': expect.any(Number), 'judge.versions': 1 });
    expect(new Set(judgedBy.map((metrics) => (metrics as Record<string, number>)['judge.version'])).size).toBeGreaterThan(1);
    expect(trajectories.filter(({ rolloutId }) => rolloutId.startsWith('judge'))).toEqual([]);
    expect(new Set(trajectories.map(({ turns }) => turns.length))).toEqual(new Set([1]));
    const trained = await store.query({ trained: true });
    const { samples } = makeBatch(trained);
    for (const { rolloutId, tokens, mask } of samples) {
      const [turn] = trained.find((trajectory) => trajectory.rolloutId === rolloutId)!.turns;
      expect([...tokens].filter((_, i) => mask[i] === 1)).toEqual([...turn!.sampledIds]);
    }
  });

  it('can be tried once', async () => {
    const { code, stdout, stderr } = await trainyard('try', entry, '--tasks', tasks);
    expect({ code, stderr, stdout }).toEqual({ code: 0, stderr: '', stdout: expect.stringMatching(/reward [\d.]+ /) });
  });
});
