/**
 * The calls that coding agents make beside their conversation, through the real gateway: the conversation goes on from its own turns, titles
 * and memories are not trained, and whatever may be a part of the agent's work is.
 */
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { defineWorkflow } from '../../src/core/define.ts';
import type { RunEvent } from '../../src/core/events.ts';
import type { Json, Message, Turn } from '../../src/core/types.ts';
import { onlyTrained } from '../../src/rollout/record.ts';
import { createRenderer } from '../../src/tokens/renderer.ts';
import { stitch } from '../../src/tokens/stitch.ts';
import { createTokenizer } from '../../src/tokens/tokenizer.ts';
import { readTokenizerFiles } from '../../src/tokens/tokenizer-files.ts';
import { train } from '../../src/training/train.ts';
import { temporaryFolder } from '../fixtures/folder.ts';
import { LOOKUP, open, post, renderer, say, tools } from '../fixtures/gateway/streams.ts';

const system = (content: string): Message => ({ role: 'system', content });
const user = (content: string): Message => ({ role: 'user', content });
const result = (content: string): Message => ({ role: 'tool', content });

type Call = (said: readonly Message[]) => { readonly messages: readonly Message[]; readonly tools?: typeof tools };
const title: Call = () => ({
  messages: [system('You write titles'), user('Generate a title for this conversation:'), user('fix the bug')],
});
const agent: Call = () => ({ messages: [system('You are opencode'), user('fix the bug')], tools });
const goOn =
  (from: number, before: Call, ...more: Message[]): Call =>
  (said) => ({ ...before(said), messages: [...before(said).messages, said[from]!, ...more] });

/** The replies of the policy, by call. */
async function turnsOf(calls: readonly Call[], replies: readonly string[], words = renderer): Promise<readonly Turn[]> {
  const { session } = open({
    renderer: words,
    reply: (_, call) => say(replies[call]!),
    spec: { limits: { turns: 20, tokens: 1e9, deadlineMs: 9000 } },
  });
  const said: Message[] = [];
  for (const call of calls) {
    const reply = await post(session, JSON.stringify(call(said)));
    const body = (await reply.json()) as { choices: { message: Message }[] };
    said.push(body.choices[0]!.message);
  }
  return session.seal();
}

const seen = (turns: readonly Turn[]) => turns.map(({ after, fork, trainable }) => [after, fork?.cause, trainable]);
const samples = (turns: readonly Turn[]) =>
  stitch(turns, { advantageOf: () => 1, weight: 1, rolloutId: 'r1', groupId: 'g1' }).length;

const DONE = 'Done.<|im_end|>';
const TITLE = 'Bug hunt<|im_end|>';
const second = goOn(0, agent, result('ok'));

describe('a side call', () => {
  it('is not trained, and the conversation goes on from its own turn', async () => {
    const turns = await turnsOf([agent, title, second], [LOOKUP, TITLE, DONE]);
    expect(seen(turns)).toEqual([
      [undefined, undefined, true],
      [undefined, 'side_call', false],
      [0, undefined, true],
    ]);
    expect(turns[1]!.fork).toEqual({ cause: 'side_call', from: 0 });
    expect(samples(turns)).toBe(1);
  });

  it('may come first: the conversation then begins without a fork', async () => {
    const turns = await turnsOf([title, agent, goOn(1, agent, result('ok'))], [TITLE, LOOKUP, DONE]);
    expect(seen(turns)).toEqual([
      [undefined, 'side_call', false],
      [undefined, undefined, true],
      [1, undefined, true],
    ]);
    expect(turns[0]!.fork?.from).toBe(1);
  });

  it('is also the memory call that gets the whole history under other instructions', async () => {
    const memory: Call = (said) => {
      const history = [...agent([]).messages.slice(1), said[0]!, result('ok')];
      return { messages: [system('You extract memories'), ...history, user('What is to be kept?')] };
    };
    const calls = [agent, second, memory, goOn(1, second, user('and now?'))];
    const turns = await turnsOf(calls, [LOOKUP, DONE, 'Nothing is.<|im_end|>', DONE]);
    expect(seen(turns)[2]).toEqual([undefined, 'side_call', false]);
    expect(samples(turns)).toBe(1);
  });

  const question = user('fix the bug\n\n<environment_details>\nCurrent time: 12:00\n</environment_details>');
  const kilo: Call = () => ({ messages: [system('You are Kilo'), question], tools });
  const quoting = 'User messages, oldest to newest:\n1. fix the bug\n\nWork done so far:\n- ls';
  const kiloTitle: Call = () => ({
    messages: [system('You are a title generator'), user(`Generate a title for this conversation:\n\n${quoting}`)],
  });
  const answered = goOn(0, kilo, result('ok'));

  it('is also the title that quotes a part of the question, between two questions and as the last call', async () => {
    const between = await turnsOf([kilo, answered, kiloTitle, goOn(1, answered, user('and now?'))], [LOOKUP, DONE, TITLE, DONE]);
    expect(seen(between)[2]).toEqual([undefined, 'side_call', false]);
    const last = await turnsOf([kilo, answered, kiloTitle], [LOOKUP, DONE, TITLE]);
    expect(seen(last)[2]).toEqual([undefined, 'side_call', false]);
    expect(last[2]!.fork?.from).toBe(1);
    expect(samples(last)).toBe(1);
  });

  it('is the agent’s own work where the workflow returns what it said', async () => {
    const turns = await turnsOf([kilo, answered, kiloTitle], [LOOKUP, DONE, TITLE]);
    const trained = (output?: Json) => onlyTrained(turns, undefined, output).map(({ trainable }) => trainable);
    expect(trained('Bug hunt')).toEqual([true, true, true]);
    expect(trained('Done.')).toEqual([true, true, false]);
    expect(trained()).toEqual([true, true, false]);
  });

  it('is trained where the workflow names it', async () => {
    const turns = await turnsOf([agent, title, second], [LOOKUP, TITLE, DONE]);
    expect(onlyTrained(turns, [0, 1, 2]).map(({ trainable }) => trainable)).toEqual([true, true, true]);
    expect(onlyTrained(turns, [2]).map(({ trainable }) => trainable)).toEqual([false, false, true]);
    expect(onlyTrained(turns, undefined)).toEqual(turns);
  });
});

describe('what is trained, because it may be the agent’s own work', () => {
  const allTrained = async (calls: readonly Call[], replies: readonly string[]) => {
    const turns = await turnsOf(calls, replies);
    expect(turns.map(({ trainable }) => trainable)).toEqual(calls.map(() => true));
    expect(turns.map(({ fork }) => fork?.cause)).not.toContain('side_call');
    return turns;
  };

  it('a call whose words come back in the conversation', async () => {
    const plan: Call = () => ({ messages: [system('You plan'), user('fix the bug')] });
    await allTrained([agent, plan, goOn(0, agent, result('The plan: Bug hunt'))], [LOOKUP, TITLE, DONE]);
  });

  it('a call after which no conversation goes on', async () => {
    const topic: Call = () => ({ messages: [system('You name topics'), user('fix the bug')] });
    const headline: Call = () => ({
      messages: [system('You write'), user('Write an article with a title about this: fix the bug')],
    });
    for (const last of [topic, headline]) await allTrained([agent, second, last], [LOOKUP, DONE, TITLE]);
    await allTrained([title, agent], [TITLE, LOOKUP]);
  });

  it('a last call that asks for a title of another conversation, or with tools, or in a thread of its own words', async () => {
    const other: Call = () => ({ messages: [system('You write titles'), user('A title for this conversation: sell a car')] });
    const withTools: Call = () => ({ ...title([]), tools });
    const asAgent: Call = () => ({ messages: [system('You are opencode'), ...title([]).messages.slice(1)] });
    for (const last of [other, withTools, asAgent]) await allTrained([agent, second, last], [LOOKUP, DONE, TITLE]);
  });

  it('a call under the same instructions, one with tools, and one about something else', async () => {
    const same: Call = () => ({ messages: [...agent([]).messages, user('Write a title')] });
    const withTools: Call = () => ({ ...title([]), tools });
    const other: Call = () => ({ messages: [system('You judge pages'), user('Is this page of any use? Lorem ipsum.')] });
    for (const call of [same, withTools, other]) await allTrained([agent, call, second], [LOOKUP, TITLE, DONE]);
  });

  it('two agents of one thread, of which each goes on, with or without tools', async () => {
    const critic: Call = () => ({ messages: [system('You find faults'), user('fix the bug')] });
    const turns = await allTrained([agent, critic, second, goOn(1, critic, user('Again.'))], [LOOKUP, TITLE, DONE, DONE]);
    expect(seen(turns).map(([after, cause]) => [after, cause])).toEqual([
      [undefined, undefined],
      [undefined, 'new_conversation'],
      [0, undefined],
      [1, undefined],
    ]);
    expect(samples(turns)).toBe(2);
  });

  it('several single calls', async () => {
    const asking =
      (question: string): Call =>
      () => ({ messages: [system(question), user('fix the bug')] });
    await allTrained([asking('One?'), asking('Two?'), asking('Three?')], [TITLE, DONE, DONE]);
  });
});

describe('a template that writes the past in another way', () => {
  it('does not hide what the client changed', async () => {
    const files = await readTokenizerFiles(new URL('../../models/base', import.meta.url).pathname);
    const chatTemplate = files.chatTemplate.replace(
      "{{- '<|im_start|>' + m",
      "{{- '<|im_start|>' + (messages | length | string) + m",
    );
    const counting = createRenderer(createTokenizer({ ...files, chatTemplate }));
    const chat: Call = () => ({ messages: [user('a')] });
    const turns = await turnsOf([chat, goOn(0, chat, user('b')), goOn(0, chat, user('c'))], [DONE, DONE, DONE], counting);
    expect(turns[1]!.fork).toEqual({ cause: 'template_rewrites_history', from: 0 });
    expect(turns[2]!.fork).toEqual({ cause: 'edited_message', also: ['template_rewrites_history'], from: 1, message: 2 });
  });
});

it('a planner, router or critic beside the conversation is trained, whatever it said and whether or not it is used', async () => {
  const planner: Call = () => ({ messages: [system('You plan. Say in one line what to do.'), user('fix the bug')] });
  const turns = await turnsOf([planner, agent, goOn(1, agent, user('and?'))], [DONE, DONE, DONE]);
  expect(turns.map(({ trainable }) => trainable)).toEqual([true, true, true]);
});

it.each([
  ['whole', (task: string) => task],
  ['within other words', (task: string) => `The task: ${task}\nWhich expert?`],
  ['in part', (task: string) => task.split('\n')[0]!],
])('a router is trained whatever the user’s task is about, which it gets %s', async (_, quoted) => {
  const tasks = ['Fix the crash', 'Fix the memory leak\nin server.ts', 'Mend the title of this conversation page\nand test it'];
  for (const task of tasks) {
    const router: Call = () => ({ messages: [system('Name the expert.'), user(quoted(task))] });
    const expert: Call = () => ({ messages: [system('You mend.'), user(`${task}\n\n<time>12:00</time>`)], tools });
    const first = await turnsOf([router, expert, goOn(1, expert, result('ok'))], [DONE, LOOKUP, DONE]);
    const last = await turnsOf([expert, goOn(0, expert, result('ok')), router], [LOOKUP, DONE, DONE]);
    expect([...first, ...last].map(({ trainable }) => trainable)).toEqual(Array(6).fill(true));
    const titled = await turnsOf(
      [expert, goOn(0, expert, result('ok')), () => ({ messages: [...title([]).messages.slice(0, 2), user(quoted(task))] })],
      [LOOKUP, DONE, TITLE],
    );
    expect(titled.map(({ trainable }) => trainable)).toEqual([true, true, false]);
  }
});

it('a run says that it does not train them, once', async () => {
  let reward = 0;
  const workflow = defineWorkflow(async (ctx) => {
    const policy = ctx.model();
    const { messages } = agent([]);
    const { message } = await policy.generate({ messages, tools, maxTokens: 4 });
    await policy.generate({ ...title([]), maxTokens: 4 });
    await policy.generate({ messages: [...messages, message, user('and?')], tools, maxTokens: 4 });
    return { reward: reward++ % 2 };
  });
  const events: RunEvent[] = [];
  const tasks = ['a', 'b', 'c', 'd'].map((prompt) => ({ prompt }));
  const settings = { steps: 1, group: 2, groupsPerStep: 1, threads: 1, run: join(temporaryFolder(), 'run') };
  await train({ entry: { workflow }, tasks, ...settings }, (event) => events.push(event));
  const told = events.filter((event) => event.type === 'warning' && event.code === 'SIDE_CALL');
  expect(told).toMatchObject([{ message: expect.stringContaining("turn 1 looks like a client's call beside its conversation") }]);
});
