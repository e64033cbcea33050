/** The run's own policy as a judge: asked through the real gateway, never stored, never trained. */
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { Grader, GraderModel } from '../../src/core/contracts.ts';
import { defineGrader, defineWorkflow } from '../../src/core/define.ts';
import { withPolicy } from '../../src/engines/open-policy.ts';
import { listen } from '../../src/gateway/gateway.ts';
import { judge } from '../../src/graders/judge.ts';
import { inlineGrader } from '../../src/grading/inline.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { makeBatch } from '../../src/training/batch.ts';
import { trainyard, useScratch } from '../cli/command.ts';
import { tokenizer } from '../fixtures/gateway/streams.ts';
import { rolloutsThrough, scriptedGateway } from '../fixtures/scripted-gateway.ts';
import { memoryStore } from '../fixtures/store/memory-store.ts';

/** One rollout of an agent that says "fine"; `says` is what the policy says as a judge, the n-th time it is asked. */
async function judged(
  grader: Grader,
  says: (prompt: string, call: number) => string,
  { versions = [], after }: { readonly versions?: readonly number[]; readonly after?: () => Promise<void> } = {},
) {
  const prompts: string[] = [];
  const { engine, gateway } = scriptedGateway((call, { promptIds }) => {
    const prompt = tokenizer.decode(promptIds);
    prompts.push(prompt);
    engine.policyVersion = versions[call] ?? 0;
    return call === 0 ? 'fine' : says(prompt, call);
  });
  await using _listener = await listen(gateway);
  await using store = memoryStore();
  const { signal } = new AbortController();
  const workflow = defineWorkflow(async (ctx) => (await ctx.model().generate({ messages: ctx.prompt })).text);
  const asking = withPolicy(inlineGrader(grader), grader, { sessions: gateway, seed: 3, signal });
  const task = { id: 't', prompt: [{ role: 'user', content: 'How are you?' }], answer: 'GOLD' } as const;
  const trajectory = await rolloutsThrough(gateway, store)({ workflow, grader: asking, limits: { turns: 1, tokens: 40 } }, task);
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
    expect({ grade: trajectory.grade, openSessions }).toMatchObject({ grade: { code: 'GRADER_UNSCORABLE' }, openSessions: 0 });
  });

  it('says with which version it judged, and when there were several', async () => {
    const says = (prompt: string, call: number): string => (call === 1 ? 'hm' : verdictFor(prompt, 1));
    // A version is taken when a call begins, and set here while the one before is answered.
    const { trajectory } = await judged(kind, says, { versions: [4, 5] });
    expect(trajectory.grade).toMatchObject({ reward: { metrics: { 'judge.version': 5, 'judge.versions': 2 } } });
    expect(trajectory.turns.map(({ policyVersion }) => policyVersion)).toEqual([0]);
  });

  it('is asked with the same seeds for the same rollout, and not any more once the grading is over', async () => {
    let kept: GraderModel | undefined;
    const asking = defineGrader({
      asksPolicy: true,
      grade: async (_, { model }) => {
        kept = model;
        return (await completionOf(model, 'and?')).length;
      },
    });
    const after = (): Promise<void> => expect(completionOf(kept, 'second')).rejects.toThrow(/^answered 4\d\d$/);
    const [one, two] = [await judged(asking, () => 'ab', { after }), await judged(asking, () => 'ab')];
    expect(kept).toMatchObject({ name: 'policy', baseURL: expect.stringMatching(/\/r\/judge-/) });
    expect(one.trajectory.grade).toMatchObject({ reward: { value: 2 } });
    expect(one.seeds[1]).toBe(two.seeds[1]);
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
  const home = useScratch();

  it('trains on what the agent sampled and nothing else, judged by one version at a time', async () => {
    const entry = await home.write('agent.ts', ENTRY);
    const lines = Array.from({ length: 6 }, (_, i) => JSON.stringify({ id: `t${i}`, prompt: `Question ${i}?` }));
    const tasks = await home.write('tasks.jsonl', lines.join('\n'));
    const run = join(home.dir, 'run');
    const small = ['--steps', '2', '--groups-per-step', '2', '--group', '4', '--tasks', tasks, '--held-out', tasks];
    expect(await trainyard('train', entry, ...small, '--run', run, '--json')).toMatchObject({ code: 0, stderr: '' });
    await using store = await openSqliteStore(join(run, 'store.sqlite'));
    const trajectories = await store.query();
    const judgedBy = trajectories.map(({ grade }) => (grade.kind === 'graded' ? grade.reward.metrics : undefined));
    expect(new Set(judgedBy.map((metrics) => metrics?.['judge.versions']))).toEqual(new Set([1]));
    expect(new Set(judgedBy.map((metrics) => metrics?.['judge.version'])).size).toBeGreaterThan(1);
    expect(trajectories.filter(({ rolloutId }) => rolloutId.startsWith('judge'))).toEqual([]);
    expect(new Set(trajectories.map(({ turns }) => turns.length))).toEqual(new Set([1]));
    const trained = await store.query({ trained: true });
    for (const { rolloutId, tokens, mask } of makeBatch(trained).samples) {
      const [turn] = trained.find((trajectory) => trajectory.rolloutId === rolloutId)!.turns;
      expect([...tokens].filter((_, i) => mask[i] === 1)).toEqual([...turn!.sampledIds]);
    }
    const tried = await trainyard('try', entry, '--tasks', tasks);
    expect(tried).toMatchObject({ code: 0, stderr: '', stdout: expect.stringMatching(/reward [\d.]+ /) });
  });
});
