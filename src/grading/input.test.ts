import { describe, expect, it } from 'vitest';
import { trainedTurn } from '../../test/fixtures/trained-rows.ts';
import type { Message, Turn } from '../core/types.ts';
import { graderInput } from './call.ts';

const task = { id: 't', prompt: [{ role: 'user', content: 'Add 1 and 2.' }], answer: 3 } as const;

const turn = (index: number, thread: string, said: string, trainable = true): Turn =>
  trainedTurn(index, {
    ...{ thread, role: thread, trainable, stopReason: 'stop', startedAt: 0, endedAt: 1 },
    request: { messages: [{ role: 'user', content: `to ${thread}` }], tools: [] },
    response: { role: 'assistant', content: said },
  });

/** A turn without what is said elsewhere: the request, its ids, and how it was sampled. */
const { request: _, sampling: __, promptIds, ...recorded } = turn(0, 'main', '');
const RECORDED = { ...recorded, promptTokens: promptIds.length };

const said = (messages: readonly Message[]): readonly (string | null)[] => messages.map((message) => message.content);

describe('what a grader sees', () => {
  it('is the task with its answer, the conversation with its last message, every turn in words, and the output', () => {
    const input = graderInput(task, {
      turns: [turn(0, 'main', 'hm'), turn(1, 'main', '3')],
      outcome: { kind: 'completed' },
      result: { output: [3], success: true, metrics: { tries: 2 } },
    });
    const messages = [
      { role: 'user', content: 'to main' },
      { role: 'assistant', content: '3' },
    ];
    expect(input).toEqual({
      task,
      messages,
      threads: { main: messages },
      turns: [
        { ...RECORDED, index: 0, response: { role: 'assistant', content: 'hm' } },
        { ...RECORDED, index: 1, response: { role: 'assistant', content: '3' } },
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

  it('is what the policy said in its own words where a turn goes on from it, however the client wrote it on the way', () => {
    const call = (given: string) => ({ id: 'c', type: 'function' as const, function: { name: 'add', arguments: given } });
    const first = {
      ...turn(0, 'main', ''),
      response: { role: 'assistant', content: null, tool_calls: [call('{ "a":1}')] },
    } as Turn;
    const sent = { role: 'assistant', content: '', tool_calls: [call('{"a":1}')], refusal: null } as Message;
    const result = { role: 'tool', content: null, tool_call_id: 'c' } as Message;
    const request = { messages: [...first.request.messages, sent, result], tools: [] };
    const conversation = (second: Partial<Turn>) =>
      graderInput(task, { turns: [first, { ...turn(1, 'main', '3'), request, ...second }], outcome: { kind: 'completed' } })
        .messages;
    const rest = [
      { role: 'tool', content: '', tool_call_id: 'c' },
      { role: 'assistant', content: '3' },
    ];
    expect(conversation({ after: 0 })).toEqual([...first.request.messages, first.response, ...rest]);
    // Rendered afresh: the policy was shown what the client sent.
    const shown = { role: 'assistant', content: null, tool_calls: [call('{"a":1}')] };
    expect(conversation({})).toEqual([...first.request.messages, shown, ...rest]);
    // Another call in its place is no other spelling of the same.
    const other = { ...sent, tool_calls: [{ ...call('{"a":1}'), id: 'd' }] };
    const edited = { request: { ...request, messages: [...first.request.messages, other, result] }, after: 0 };
    expect(conversation(edited)[1]?.tool_calls?.[0]).toEqual({ ...call('{"a":1}'), id: 'd' });
  });

  it('says which limit cut the rollout short', () => {
    expect(graderInput(task, { turns: [], outcome: { kind: 'truncated', limit: 'tokens' } }).truncated).toBe('tokens');
    expect(
      graderInput(task, { turns: [], outcome: { kind: 'failed', code: 'WORKFLOW_FAILED', message: '' } }).truncated,
    ).toBeUndefined();
  });
});
