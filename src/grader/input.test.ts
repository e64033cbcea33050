import { describe, expect, it } from 'vitest';
import type { Message, Turn } from '../core/types.ts';
import { graderInput } from './input.ts';

const task = { id: 't', prompt: [{ role: 'user', content: 'Add 1 and 2.' }], answer: 3 } as const;

function turn(index: number, thread: string, said: string, trainable = true): Turn {
  const messages: readonly Message[] = [{ role: 'user', content: `to ${thread}` }];
  const effective = { temperature: 1, topP: 1, topK: 0, maxTokens: 8 };
  return {
    index,
    thread,
    role: thread,
    trainable,
    promptIds: new Int32Array(1),
    sampledIds: new Int32Array(1),
    logprobs: new Float32Array(1),
    policyVersion: 0,
    stopReason: 'stop',
    sampling: { requested: {}, effective, seed: 1 },
    request: { messages, tools: [] },
    response: { role: 'assistant', content: said },
    startedAt: 0,
    endedAt: 1,
  };
}

const said = (messages: readonly Message[]): readonly (string | null)[] => messages.map((message) => message.content);

describe('what a grader sees', () => {
  it('is the task with its answer, the conversation with its last message, every turn in words, and the output', () => {
    const input = graderInput(task, {
      turns: [turn(0, 'main', 'hm'), turn(1, 'main', '3')],
      outcome: { kind: 'completed' },
      result: { output: [3], success: true, metrics: { tries: 2 } },
    });
    expect(input).toEqual({
      task,
      messages: [
        { role: 'user', content: 'to main' },
        { role: 'assistant', content: '3' },
      ],
      threads: {
        main: [
          { role: 'user', content: 'to main' },
          { role: 'assistant', content: '3' },
        ],
      },
      turns: [
        { role: 'main', thread: 'main', response: { role: 'assistant', content: 'hm' }, stopReason: 'stop' },
        { role: 'main', thread: 'main', response: { role: 'assistant', content: '3' }, stopReason: 'stop' },
      ],
      output: [3],
      result: { success: true, metrics: { tries: 2 } },
      truncated: undefined,
      artifactsDir: null,
    });
  });

  it('is the conversation that the policy ended last, where there are several', () => {
    const turns = [turn(0, 'planner', 'plan'), turn(1, 'solver', '3'), turn(2, 'critic', 'fine', false)];
    expect(said(graderInput(task, { turns, outcome: { kind: 'completed' } }).messages)).toEqual(['to solver', '3']);
  });

  it('is the last conversation of all, where nothing is trainable', () => {
    const turns = [turn(0, 'solver', '3', false), turn(1, 'critic', 'fine', false)];
    expect(said(graderInput(task, { turns, outcome: { kind: 'completed' } }).messages)).toEqual(['to critic', 'fine']);
  });

  it('is no conversation, and not the prompt, where the policy was never asked', () => {
    expect(graderInput(task, { turns: [], outcome: { kind: 'completed' } }).messages).toEqual([]);
  });

  it('says which limit cut the rollout short', () => {
    expect(graderInput(task, { turns: [], outcome: { kind: 'truncated', limit: 'tokens' } }).truncated).toBe('tokens');
    expect(
      graderInput(task, { turns: [], outcome: { kind: 'failed', code: 'WORKFLOW_FAILED', message: '' } }).truncated,
    ).toBeUndefined();
  });
});
