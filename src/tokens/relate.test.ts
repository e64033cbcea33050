import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Message, Tool } from '../core/types.ts';
import { type Asked, type Past, relate } from './history.ts';

const system: Message = { role: 'system', content: 'Be brief.' };
const user = (content: string): Message => ({ role: 'user', content });
const says = (content: string, more: Partial<Message> = {}): Message => ({ role: 'assistant', content, ...more });
const calls = (...ids: string[]): Message => ({
  role: 'assistant',
  content: null,
  tool_calls: ids.map((id) => ({ id, type: 'function', function: { name: 'add', arguments: '{"a":1}' } })),
});
const result = (content: string): Message => ({ role: 'tool', content });
const add: Tool = { type: 'function', function: { name: 'add' } };

const turn = (index: number, messages: readonly Message[], response: Message, more: Partial<Past> = {}): Past => ({
  index,
  thread: 'default',
  role: 'default',
  request: { messages, tools: [] },
  response,
  ...more,
});
const asked = (messages: readonly Message[], more: Partial<Asked> = {}): Asked => ({
  thread: 'default',
  role: 'default',
  messages,
  tools: [],
  ...more,
});

const thought = turn(0, [user('a')], says('b', { reasoning: 'hm' }));
const first = turn(0, [system, user('a')], says('b'));
const second = turn(1, [system, user('a'), says('b'), user('c')], says('d'));
const third = [system, user('a'), says('b'), user('c'), says('d'), user('e')];

describe('a request that goes on from the latest turn', () => {
  it('continues it without a fork', () => {
    expect(relate([first, second], asked(third))).toEqual({ continues: { turn: second, newMessages: [user('e')] } });
  });

  it('is told from one that goes on from an equal answer by the ids of its tool calls', () => {
    const one = turn(0, [user('a')], calls('x1', 'x2'));
    const other = turn(1, [user('a')], calls('y1', 'y2'));
    const goesOn = (message: Message) => relate([one, other], asked([user('a'), message, result('2')])).continues?.turn.index;
    expect(goesOn(calls('x1', 'x2'))).toBe(0);
    expect(goesOn(calls('y1', 'y2'))).toBe(1);
    expect(goesOn(calls('', ''))).toBe(1);
  });

  it('begins a thread of its own without a fork, whatever other threads said', () => {
    expect(relate([first], asked([user('x')], { thread: 'critic' }))).toEqual({});
    expect(relate([], asked([user('x')]))).toEqual({});
  });
});

describe('a request that does not simply go on says why', () => {
  const causeOf = (turns: readonly Past[], request: Asked) => relate(turns, request).fork;

  it.each<[string, readonly Past[], Asked, object]>([
    ['asked_again', [first], asked([system, user('a')]), { from: 0 }],
    ['asked_again', [first, second], asked([system, user('a'), says('b'), user('c')]), { from: 1 }],
    ['rewound', [first, second], asked([system]), { from: 1 }],
    ['edited_message', [first, second], asked(third.with(3, user('other'))), { message: 3 }],
    ['edited_message', [first], asked([system, user('a'), says('B'), user('c')]), { from: 0, message: 2 }],
    ['edited_message', [first], asked([{ ...system, content: 'Be long.' }, user('a'), says('b'), user('c')]), { message: 0 }],
    ['changed_tools', [first], asked([system, user('a'), says('b'), user('c')], { tools: [add] }), { from: 0 }],
    ['changed_tools', [first], asked([system, user('a')], { tools: [add] }), { from: 0 }],
    ['new_conversation', [first], asked([{ role: 'system', content: 'Make a title.' }, user('a, b')]), { from: 0, message: 0 }],
    ['new_conversation', [first, second], asked([system, user('something else')]), { message: 1 }],
    ['compaction', [first, second], asked([system, user('a'), user('Summary: b, c, d.')]), { message: 2 }],
    ['compaction', [first, second], asked([system, user('Summary.'), says('d')]), { message: 1 }],
    ['role_change', [first], asked([system, user('a'), says('b'), user('c')], { thread: 'critic', role: 'critic' }), { from: 0 }],
    ['dropped_reasoning', [thought], asked([user('a'), says('b'), user('c')]), { from: 0, message: 1 }],
    ['edited_message', [thought], asked([user('a'), says('b', { reasoning: 'ha' }), user('c')]), { message: 1 }],
    ['dropped_tool_call', [turn(0, [user('a')], calls('x', 'y'))], asked([user('a'), calls('y'), result('1')]), { message: 1 }],
  ])('%s', (cause, turns, request, more) => {
    expect(causeOf(turns, request)).toMatchObject({ cause, ...more });
  });

  it('and still continues the turn it goes back to', () => {
    const { continues, fork } = relate([first, second], asked([system, user('a'), says('b'), user('other')]));
    expect(continues?.turn).toBe(first);
    expect(fork).toEqual({ cause: 'edited_message', from: 1, message: 3 });
  });

  it('rewound, where it goes on from another of several answers to one question, as nothing of the past was edited', () => {
    const answers = ['b', 'c', 'd'].map((word, i) => turn(i, [user('a')], says(word)));
    const { continues, fork } = relate(answers, asked([user('a'), says('b'), user('e')]));
    expect(continues?.turn).toBe(answers[0]);
    expect(fork).toEqual({ cause: 'rewound', from: 2, message: 1 });
  });
});

describe('what coding agents send', () => {
  const opencode: Message = { role: 'system', content: 'You are opencode' };
  const bug = user('fix the bug');
  const looks = { ...calls('x'), content: 'I look' };
  const tools = { tools: [add] };
  const main = turn(0, [opencode, bug], looks, { request: { messages: [opencode, bug], ...tools } });
  const titled = [{ role: 'system' as const, content: 'You write titles' }, user('Generate a title:'), bug];

  it('a title, and the conversation after it, begin conversations', () => {
    expect(relate([main], asked(titled)).fork).toEqual({ cause: 'new_conversation', from: 0, message: 0 });
    const title = turn(0, titled, says('Bug fix'));
    expect(relate([title], asked([opencode, bug], tools)).fork?.cause).toBe('new_conversation');
  });

  it('the conversation goes on from its own latest turn, whatever was asked in between', () => {
    const title = turn(1, titled, says('Bug fix'));
    const goesOn = relate([main, title], asked([opencode, bug, looks, result('ok')], tools));
    expect(goesOn).toEqual({ continues: { turn: main, newMessages: [result('ok')] } });
  });

  it('two agents of one thread go on, each from its own turn', () => {
    const critic: Message = { role: 'system', content: 'You find faults' };
    const other = turn(1, [critic, user('a draft')], says('too long'));
    expect(relate([first], asked([critic, user('a draft')])).fork?.cause).toBe('new_conversation');
    expect(relate([first, other], asked([system, user('a'), says('b'), user('too long')]))).toMatchObject({
      continues: { turn: first },
    });
    const both = [first, other, turn(2, [system, user('a'), says('b'), user('too long')], says('c'))];
    const { continues, fork } = relate(both, asked([critic, user('a draft'), says('too long'), user('c')]));
    expect([continues?.turn, fork]).toEqual([other, undefined]);
  });

  const past = [opencode, bug, looks, result('1'), looks, result('2')];
  const long = turn(0, past, looks, { request: { messages: past, ...tools } });

  it.each([
    ['the policy’s summary', [opencode, user('What did we do so far?'), says('## Goal: the bug'), user('Continue')]],
    ['a message that quotes it', [opencode, user('Goes on from: ## Goal: to fix the bug. Done: nothing.')]],
  ])('a conversation that begins anew with %s was compacted', (_, messages) => {
    const summary = turn(1, [...past, user('Summarise')], says('## Goal: to fix the bug. Done: nothing.'));
    expect(relate([long, summary], asked(messages, tools)).fork).toMatchObject({ cause: 'compaction', message: 1 });
    expect(relate([long, summary], asked([opencode, user('Another bug')], tools)).fork?.cause).toBe('new_conversation');
  });

  it('a memory agent that gets the history with other instructions and tools is another role', () => {
    const memory = [{ role: 'system' as const, content: 'You extract memories' }, bug, looks, result('ok'), user('Memories?')];
    expect(relate([main], asked(memory)).fork).toEqual({ cause: 'role_change', from: 0, message: 0 });
  });

  it('all that changed is named, what was dropped first', () => {
    const two = turn(0, [system, user('q')], { ...calls('x', 'y'), reasoning: 'hm' });
    const resent = [system, user('q'), says('Calling tools: …'), user('Observation: 4 6')];
    const also = ['dropped_tool_call', 'edited_message', 'changed_tools'];
    expect(relate([two], asked(resent, tools)).fork).toEqual({ cause: 'dropped_reasoning', also, from: 0, message: 2 });
  });
});

describe('what frameworks send', () => {
  const agentTools = { tools: [add] };
  const proTools = { tools: [{ type: 'function' as const, function: { name: 'weather' } }] };
  const withTools = (index: number, messages: readonly Message[], response: Message, more = agentTools, place = {}): Past =>
    turn(index, messages, response, { request: { messages, ...more }, ...place });
  const causeOf = (turns: readonly Past[], messages: readonly Message[], more: Partial<Asked> = agentTools) =>
    relate(turns, asked(messages, more)).fork;
  const answer = says('The weather is fine, 21 degrees.');
  const looks = { ...calls('x', 'y'), content: 'I look' };
  const past = [system, user('q1'), looks, result('21'), result('fine')];
  const asking = [withTools(0, past.slice(0, 2), looks), withTools(1, past, answer)];

  it('a history that keeps only the last answers was compacted, and no dialect would have kept more', () => {
    expect(causeOf(asking, [system, user('q1'), answer, user('q2')])).toEqual({ cause: 'compaction', from: 1, message: 2 });
    const thinks = [asking[0]!, withTools(1, past, { ...answer, reasoning: 'hm' })];
    const also = ['dropped_reasoning'];
    expect(causeOf(thinks, [system, user('q1'), answer, user('q2')])).toEqual({ cause: 'compaction', also, from: 1, message: 2 });
  });

  it('what was dropped from a message is no compaction, though the policy said the rest of it again later', () => {
    const again = [...past, looks, result('22'), result('rain')];
    const turns = [withTools(0, again, answer)];
    const dropped = (message: Message) => causeOf(turns, again.with(2, message).concat(answer, user('q2')))?.cause;
    expect(dropped({ ...looks, tool_calls: looks.tool_calls!.slice(1) })).toBe('dropped_tool_call');
    expect(dropped({ ...looks, content: 'I see' })).toBe('edited_message');
  });

  const triage: Message = { role: 'system', content: 'Triage' };
  const pro: Message = { role: 'system', content: 'You know the weather' };
  const transfer = { ...calls('t'), reasoning: 'hm' };
  const sent = { ...transfer, reasoning: '' };

  it.each([
    ['in one role', {}],
    ['in a role of its own', { thread: 'pro', role: 'pro' }],
  ])('a handoff is a change of roles, %s, also where the reasoning was dropped', (_, place) => {
    const turns = [withTools(0, [triage, user('q1')], transfer)];
    const fork = causeOf(turns, [pro, user('q1'), sent, result('ok')], { ...proTools, ...place });
    expect(fork).toEqual({ cause: 'role_change', also: ['dropped_reasoning'], from: 0, message: 0 });
  });

  it.each([
    ['in one role', {}],
    ['in a role of its own', { thread: 'pro', role: 'pro' }],
  ])('so is the next one, of a second question without the first, %s', (_, place) => {
    const first = [pro, user('q1'), transfer, result('ok')];
    const turns = [
      withTools(0, [triage, user('q1')], transfer),
      withTools(1, first, looks, proTools, place),
      withTools(2, [...first, looks, result('21')], answer, proTools, place),
      withTools(3, [triage, user('q2')], transfer),
    ];
    const fork = causeOf(turns, [pro, user('q2'), transfer, result('ok')], { ...proTools, ...place });
    expect(fork).toEqual({ cause: 'role_change', from: 3, message: 0 });
  });

  it('an agent whose instructions name the time is the same agent, also where the reasoning was dropped', () => {
    const at = (time: string): Message => ({ role: 'system', content: `It is ${time}.` });
    const turns = [withTools(0, [at('9:00'), user('q1')], transfer)];
    const fork = causeOf(turns, [at('9:01'), user('q1'), sent, result('ok')]);
    expect(fork).toEqual({ cause: 'edited_message', also: ['dropped_reasoning'], from: 0, message: 0 });
  });

  it.each([
    'Task 2. Context: The weather is fine, 21 degrees.',
    'Summarise the following: The weather is fine, 21 degrees.',
    'This is the context you are working with:\nThe weather is fine, 21 degrees.',
  ])('a task that quotes the last result is a new conversation: %s', (task) => {
    expect(causeOf(asking, [system, user(task)])).toEqual({ cause: 'new_conversation', from: 1, message: 1 });
  });

  const header = (hash: string): Message => ({
    role: 'system',
    content: `x-anthropic-billing-header: cc_version=2.1.197.${hash};\nYou are Claude Code`,
  });
  const summary = says('<summary>The user wanted hello.txt and has it now.</summary>');

  it('Claude Code’s summary is a compaction, whatever its line about billing says', () => {
    const under = (hash: string) => past.with(0, header(hash));
    const turns = [withTools(0, under('38b').slice(0, 2), looks), withTools(1, under('38b'), summary)];
    const continued = user(`This session is being continued from another conversation: ${summary.content}`);
    expect(causeOf(turns, [header('f9d'), continued])).toEqual({ cause: 'compaction', from: 1, message: 1 });
    const goesOn = relate(turns, asked([...under('707'), summary, user('thanks')], agentTools));
    expect(goesOn).toEqual({ continues: { turn: turns[1], newMessages: [user('thanks')] } });
    const other: Message = { role: 'system', content: 'x-anthropic-billing-header: 1\nYou write titles' };
    expect(relate(turns, asked([other, ...under('38b').slice(1), summary], agentTools)).continues).toBeUndefined();
  });
});

describe('whatever is asked', () => {
  const word = fc.constantFrom('a', 'b', 'c');
  const message: fc.Arbitrary<Message> = fc.oneof(
    fc.record({ role: fc.constant('user' as const), content: word }),
    fc.record({ role: fc.constant('assistant' as const), content: word }),
  );
  const messages = fc.array(message, { minLength: 1, maxLength: 5 });
  const past = fc.array(fc.tuple(messages, word), { maxLength: 5 });

  it('a continued turn’s words stand at its beginning, and only the latest turn of a conversation goes on without a fork', () => {
    fc.assert(
      fc.property(past, messages, (recorded, request) => {
        const turns = recorded.map(([before, said], i) => turn(i, before, says(said)));
        const { continues, fork } = relate(turns, asked(request));
        if (continues) {
          const spoken = [...continues.turn.request.messages, continues.turn.response, ...continues.newMessages];
          expect(spoken.map(({ role, content }) => [role, content])).toEqual(request.map(({ role, content }) => [role, content]));
        }
        // Whether what was said since then repeats the continued turn's question.
        const since = continues ? turns.slice(turns.indexOf(continues.turn) + 1) : [];
        const asksAgain = (other: Past) =>
          continues?.turn.request.messages.every((message, i) => {
            const found = [...other.request.messages, other.response][i];
            return found?.role === message.role && found.content === message.content;
          });
        expect(fork === undefined).toBe(turns.length === 0 || (continues !== undefined && !since.some(asksAgain)));
      }),
      { numRuns: 2000 },
    );
  });
});

it('a conversation that forks at every turn is compared with the turn that it has most in common with, not with all of them', () => {
  let reads = 0;
  const counted = (message: Message): Message => ({
    ...message,
    get content() {
      reads++;
      return message.content;
    },
  });
  const messages: Message[] = [];
  const turns: Past[] = [];
  for (let i = 0; i < 100; i++) {
    messages.push(counted(user(`q${i}`)));
    turns.push(turn(i, [...messages], says(`a${i}`, { reasoning: 'hm' })));
    messages.push(counted(says(`a${i}`)));
  }
  const { fork } = relate(turns, asked([...messages, user('q100')]));
  expect(fork).toEqual({ cause: 'dropped_reasoning', from: 99, message: 199 });
  // Each message twice, as recorded and as asked, in a comparison of all; some more for the last of each turn.
  expect(reads).toBeLessThan(5 * messages.length);
});
