/** What built-in graders compare: the final text of a rollout, and the task's answer. */
import { describe, expect, it } from 'vitest';
import type { GraderInput } from '../core/contracts.ts';
import type { Json, Message } from '../core/types.ts';
import { acceptedAnswers, answerOf, saidBy } from './answer-text.ts';

const input = (given: Partial<GraderInput> & { readonly answer?: Json }): GraderInput => ({
  task: { id: 't1', prompt: [], ...('answer' in given ? { answer: given.answer as Json } : {}) },
  messages: [],
  threads: {},
  turns: [],
  output: undefined,
  result: {},
  truncated: undefined,
  artifactsDir: null,
  ...given,
});
const assistant = (content: string | null): Message => ({ role: 'assistant', content });

describe('what was said', () => {
  it('is the output where that is a text or a number, even an empty one', () => {
    expect(saidBy(input({ output: 'out', messages: [assistant('last')] }))).toBe('out');
    expect(saidBy(input({ output: '', messages: [assistant('last')] }))).toBe('');
    expect(saidBy(input({ output: 0.5 }))).toBe('0.5');
  });

  it('is otherwise the last message of the assistant, whatever came behind it', () => {
    const messages: Message[] = [assistant('first'), assistant('last'), { role: 'user', content: 'thanks' }];
    for (const output of [undefined, null, true, { answer: 1 }, ['x']]) expect(saidBy(input({ output, messages }))).toBe('last');
  });

  it('is nothing where nothing was said', () => {
    expect(saidBy(input({}))).toBe('');
    expect(saidBy(input({ messages: [assistant('before'), assistant(null)] }))).toBe('');
  });

  it('is what `of` reads, which has to be a text', () => {
    expect(saidBy(input({ output: 'out' }), ({ task }) => task.id)).toBe('t1');
    expect(() => saidBy(input({}), () => undefined as never)).toThrow(
      expect.objectContaining({ code: 'GRADER_UNSCORABLE', message: expect.stringMatching(/`of` returned undefined/) }),
    );
  });
});

describe('the answer', () => {
  const refused = (message: RegExp) =>
    expect.objectContaining({ code: 'GRADER_UNSCORABLE', message: expect.stringMatching(message) });

  it('is unscorable where it is missing or empty', () => {
    expect(() => answerOf(input({}))).toThrow(refused(/task "t1" has no answer/));
    expect(() => answerOf(input({ answer: null }))).toThrow(refused(/has no answer/));
    for (const answer of ['', ' \n', []]) expect(() => answerOf(input({ answer }))).toThrow(refused(/is empty/));
  });

  it('may be false or 0', () => {
    expect(answerOf(input({ answer: 0 }))).toBe(0);
    expect(acceptedAnswers(input({ answer: false }))).toEqual(['false']);
  });

  it('may be several', () => {
    expect(acceptedAnswers(input({ answer: ['a', 2] }))).toEqual(['a', '2']);
    expect(acceptedAnswers(input({ answer: ' a ' }))).toEqual([' a ']);
  });

  it('is never quoted when it cannot be used', () => {
    for (const answer of [{ secret: 'secret' }, ['secret', null], [['secret']], ['secret', '']]) {
      expect(() => acceptedAnswers(input({ answer }))).toThrow(refused(/^(?!.*secret).*expected a text or number/));
    }
  });
});
