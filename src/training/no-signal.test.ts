import { describe, expect, it } from 'vitest';
import { ended } from '../../test/fixtures/evaluation.ts';
import { trainedTurn } from '../../test/fixtures/trained-rows.ts';
import { TrainyardError } from '../core/errors.ts';
import type { RunEvent } from '../core/events.ts';
import type { Message, Trajectory, Turn } from '../core/types.ts';
import { BASE_MODEL } from '../settings/settings.ts';
import { endingWithoutSignal, tellNoSignalYet } from './no-signal.ts';

type How = number | Partial<Trajectory>;
const said = (content: string, more: Partial<Turn> = {}): readonly Turn[] => [
  trainedTurn(0, { role: 'default', ...more, response: spoken(content) }),
];
const spoken = (content: string): Message => ({ role: 'assistant', content });
const TOOLS = { request: { messages: [], tools: [{ type: 'function', function: { name: 'look' } }] } } as const;

function batch(...groups: readonly (readonly How[])[]) {
  const withoutSignal = groups.map((ways, g) => ({
    groupId: `g${g}`,
    task: { id: 'a', prompt: [] },
    trajectories: ways.map((how, i) => ({
      ...ended('a', i + 1, typeof how === 'number' ? how : {}),
      ...(typeof how === 'number' ? {} : how),
    })),
  }));
  return { groups: [], withoutSignal, stale: [] };
}

function warnings(tried: ReturnType<typeof batch>, workflow: { accepts?: () => boolean } = {}): readonly RunEvent[] {
  const told: RunEvent[] = [];
  tellNoSignalYet(tried, { workflow }, (event) => told.push(event));
  return told;
}

function failure(tried: ReturnType<typeof batch>, model = '/models/other', accepts?: () => boolean): string {
  const workflow = accepts === undefined ? {} : { accepts };
  try {
    return endingWithoutSignal([tried], { model, workflow }, 0);
  } catch (thrown) {
    if (!(thrown instanceof TrainyardError)) throw thrown;
    return `${thrown.code}: ${thrown.message}\n${thrown.hint}`;
  }
}

describe('a run without signal', () => {
  it('says what the answers looked like, with one of them', () => {
    const turns = [...said('', {}), ...said('<tool_call>{', { ...TOOLS, stopReason: 'length' }), ...said('fine')];
    const message = failure(batch([{ turns }, 0]));
    expect(message).toContain(
      'the policy gave 3 answers: 1 of 3 were empty, 1 of 3 were cut off at the token limit, 1 of 3 held a tool call that could not be read, one was "<tool_call>{"',
    );
    expect(failure(batch([{ turns: said('same') }, { turns: said('same') }]))).toContain(
      '2 answers: all were equal, one was "same"',
    );
  });

  it('is solved only if every rollout of every try succeeded', () => {
    const [solved, missed] = [batch([1, 1]), batch([0, 0])];
    const trained = { model: '/models/other', workflow: {} };
    expect(endingWithoutSignal([solved, solved, solved], trained, 0)).toBe('solved');
    expect(() => endingWithoutSignal([missed, solved, solved], trained, 0)).toThrow('2 × 0 by the grader');
    expect(endingWithoutSignal([missed, solved, solved], trained, 1), 'after a step').toBe('no-signal');
  });

  it('says which rewards were given, and by whom', () => {
    expect(failure(batch([0, 0], [0.5, 0.5]))).toContain(
      'no group had two different rewards; rewards of the last 4 rollouts: 4 × 0 to 0.5 by the grader',
    );
    const zero = { grade: { kind: 'graded', reward: { value: 0, source: 'workflow' } } } as const;
    const message = failure(batch([zero, zero]));
    expect(message).toContain('2 × 0 by the workflow');
    expect(message).toContain('\nthe workflow itself gave every rollout the reward 0');
    const logged = { ...zero, logs: [{ at: 1, text: 'F submitted reward 0 at run (agent.ts:3:1)' }] };
    const own = 'the workflow itself gave every rollout the reward 0 (it logged "F submitted reward 0 at run (agent.ts:3:1)")';
    expect(failure(batch([logged, logged]))).toContain(own);
    expect(warnings(batch([logged, logged]))).toMatchObject([{ message: expect.stringContaining(own) }]);
  });

  it('says that rollouts were rejected, and why', () => {
    const rejected = { outcome: { kind: 'rejected', reason: 'too dull' }, grade: { kind: 'ungraded', why: 'rejected' } } as const;
    expect(failure(batch([rejected, rejected]))).toContain(
      'no rollout got a reward; rewards of the last 2 rollouts: 2 × none, rejected (too dull)',
    );
  });

  it('says that the workflow refused groups whose rewards differ, and does not blame the policy', () => {
    const tried = batch([0, 1], [1, 1]);
    const message = failure(tried, BASE_MODEL, () => false);
    expect(message).toContain("the workflow's own accepts (shouldAccept) refused 1 of 2 groups with different rewards");
    expect(message).not.toContain('the model is');
    expect(warnings(tried, { accepts: () => false })).toMatchObject([
      { message: expect.stringContaining('refused 1 of 2 groups') },
    ]);
  });

  it('says how long the prompts are, if none fits into the context', () => {
    const long = {
      code: 'CONTEXT_OVERFLOW',
      message: 'the prompt has 2455 tokens, the context is 512',
      limit: 'context',
    } as const;
    const lost = { thread: 'default', role: 'default', promptTokens: 2455, sampledTokens: 0, turnsBefore: 0 };
    const unanswered = [{ ...lost, failure: long, startedAt: 0, endedAt: 0 }];
    const cut = { outcome: { kind: 'truncated', limit: 'context' }, unanswered } as const;
    const message = failure(batch([cut, cut]));
    expect(message).toContain('no prompt fitted into the context (the prompt has 2455 tokens, the context is 512)');
    expect(message).toContain('\nshorten the conversation');
  });

  it('names the model, and what the shipped one is good for', () => {
    expect(failure(batch([0, 0]))).toContain('the model is /models/other\n');
    const shipped = failure(batch([0, 0]), BASE_MODEL);
    expect(shipped).toContain('the shipped model, which knows only the jobs of examples/shop, examples/triage and examples/desk');
    expect(shipped).toContain('--engine openai');
  });

  it('is solved, without a warning, if every rollout succeeded', () => {
    expect(failure(batch([1, 1]))).toBe('solved');
    expect(warnings(batch([1, 1]))).toEqual([]);
    expect(warnings(batch([0, 0]))).toMatchObject([
      { message: 'none of 1 groups had two different rewards (mean reward 0.00); trying others' },
    ]);
  });
});
