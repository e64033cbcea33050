/**
 * Rollouts for somebody who trains somewhere else, with every part real but the engine: our own gateway is the policy, the workflow calls it
 * with stock clients over HTTP, and what the callbacks say agrees with what the gateway recorded.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import Anthropic from '@anthropic-ai/sdk';
import { run as runAgent, tool } from '@openai/agents';
import OpenAI from 'openai';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { z } from 'zod';
import type { ModelHandle } from '../../src/core/contracts.ts';
import { defineGrader, defineWorkflow } from '../../src/core/define.ts';
import type { Message, Turn } from '../../src/core/types.ts';
import * as osmosis from '../../src/osmosis.ts';
import { inputItems, OsmosisAgent, OsmosisMemorySession, OsmosisRolloutModel } from '../../src/osmosis-openai-agents.ts';
import { ROOT } from '../cli/command.ts';
import { ANSWER, LOOKUP } from '../fixtures/gateway/streams.ts';
import { type Controller, type SampleBody, send, startController } from '../fixtures/rollout-server/controller.ts';

let controller: Controller;
beforeEach(async () => {
  controller = await startController();
});
afterEach(() => controller[Symbol.asyncDispose]());

/** Another controller, whose policy says this. */
async function answering(...replies: readonly string[]): Promise<void> {
  await controller[Symbol.asyncDispose]();
  controller = await startController(replies);
}

interface Heard {
  readonly turns: readonly Turn[];
  readonly samples: Readonly<Record<string, SampleBody>>;
}

/** One rollout from the request to its last callback. */
async function rollout(options: osmosis.LocalBackendOptions, more: Readonly<Record<string, unknown>> = {}): Promise<Heard> {
  await using server = osmosis.createRolloutServer({ backend: new osmosis.LocalBackend(options), drainMs: 100 });
  const { origin } = await server.listen();
  const { session, body } = controller.begin('r1', more);
  expect(await send(origin, '/rollout', body)).toMatchObject({ status: 202, body: {} });
  const [completion, grade] = await controller.heard('r1', 2);
  expect(completion!.body).toMatchObject({ status: 'success', err_message: null });
  expect(grade!.body).toMatchObject({ status: 'success', err_message: null });
  expect((await send(origin, '/rollout/r1/status')).body).toMatchObject({ status: 'success', err_message: null });
  return { turns: session.seal(), samples: grade!.body.samples! };
}

/** Each conversation as the gateway has it. */
function conversationsOf(turns: readonly Turn[]): Record<string, readonly Message[]> {
  return Object.fromEntries(turns.map(({ thread, request, response }) => [thread, [...request.messages, response]]));
}

const messagesOf = (samples: Heard['samples']): Record<string, unknown> =>
  Object.fromEntries(Object.entries(samples).map(([id, { messages }]) => [id, messages]));

const ask = [{ role: 'user' as const, content: 'How much is it?' }];
const lookup = { name: 'lookup', description: 'price', parameters: { type: 'object' as const } };

describe('a rollout for a controller', () => {
  it('of two named samples is recorded as two threads, each with its own reward', async () => {
    class Pair extends osmosis.AgentWorkflow {
      override async run(ctx: osmosis.AgentWorkflowContext) {
        for (const name of ['solver', 'checker']) {
          const model = ctx.model().thread(name);
          const client = new OpenAI(model.openai());
          const { choices } = await client.chat.completions.create({ model: model.name, messages: ctx.prompt });
          const messages = [...ctx.prompt, choices[0]!.message, { role: 'user' as const, content: 'Sure?' }];
          await client.chat.completions.create({ model: model.name, messages });
        }
      }
    }
    class Judge extends osmosis.Grader {
      override async grade(ctx: osmosis.GraderContext) {
        expect(ctx.label).toBe('$81');
        for (const [id, sample] of Object.entries(ctx.samples)) {
          sample.metrics['words'] = sample.messages.length;
          ctx.setSampleReward(id, id === 'solver' ? 1 : 0.25);
        }
      }
    }
    const { turns, samples } = await rollout({ workflow: Pair, grader: Judge });
    expect(turns.map(({ thread }) => thread)).toEqual(['solver', 'solver', 'checker', 'checker']);
    expect(turns[1]!.after).toBe(0);
    expect(turns[3]!.after).toBe(2);
    expect([samples['solver']!.reward, samples['checker']!.reward]).toEqual([1, 0.25]);
    expect(samples['solver']!.metrics).toEqual({ words: 4 });
    expect(messagesOf(samples)).toEqual(conversationsOf(turns));
  });

  const openai = (model: ModelHandle) => new OpenAI(model.openai());
  const anthropic = (model: ModelHandle) => new Anthropic(model.anthropic()).messages;
  const said = { max_tokens: 500, system: 'Be brief.', messages: ask };
  const chatTools = [{ type: 'function' as const, function: lookup }];
  const responseTools = [{ type: 'function' as const, strict: false, ...lookup }];
  const tools = [{ name: 'lookup', input_schema: lookup.parameters }];
  const drained = async (stream: Promise<AsyncIterable<unknown>>): Promise<void> => {
    for await (const _ of await stream);
  };
  const clients: Readonly<Record<string, (model: ModelHandle) => Promise<unknown>>> = {
    'chat completions': (model) => openai(model).chat.completions.create({ model: model.name, messages: ask, tools: chatTools }),
    'chat completions, streamed': (model) =>
      drained(openai(model).chat.completions.create({ model: model.name, messages: ask, tools: chatTools, stream: true })),
    responses: (model) => openai(model).responses.create({ model: model.name, input: ask, tools: responseTools }),
    'responses, streamed': (model) =>
      drained(openai(model).responses.create({ model: model.name, input: ask, tools: responseTools, stream: true })),
    messages: (model) => anthropic(model).create({ model: model.name, ...said, tools }),
    'messages, streamed': (model) =>
      anthropic(model)
        .stream({ model: model.name, ...said, tools })
        .finalMessage(),
    generate: (model) => model.generate({ messages: ask, tools: chatTools }),
  };

  it.each(Object.keys(clients))('gives the grader what was said, by %s', async (name) => {
    for (const reply of [LOOKUP, ANSWER]) {
      await answering(reply);
      const workflow = defineWorkflow(async (ctx) => void (await clients[name]!(ctx.model())));
      const { turns, samples } = await rollout({ workflow, grader: defineGrader(({ turns: all }) => all.length) });
      expect(samples['default']!.reward).toBe(1);
      // Whatever the agent speaks, the policy is asked in Chat Completions.
      expect(turns.map(({ request }) => request.dialect)).toEqual(['chat']);
      // What a request's dialect cannot say of an answer it wrote itself: the id and spelling of a call’s arguments.
      const comparable = ({ role, content, tool_calls: calls }: Message): object => ({
        role,
        content: content || null,
        calls: calls?.map((call) => [call.function.name, JSON.parse(call.function.arguments) as unknown]),
      });
      expect((samples['default']!.messages as Message[]).map(comparable)).toEqual(
        conversationsOf(turns)['default']!.map(comparable),
      );
    }
  });

  it('runs agents of a framework through the ambient model, with their tools and their names', async () => {
    await answering(LOOKUP, ANSWER);
    const parameters = z.object({ item: z.string() });
    const price = tool({ name: 'lookup', description: 'price', parameters, execute: async () => '$81' });
    class Shop extends osmosis.AgentWorkflow {
      override async run(ctx: osmosis.AgentWorkflowContext) {
        const agent = new OsmosisAgent({ name: 'clerk', model: new OsmosisRolloutModel(), tools: [price] });
        await runAgent(agent, inputItems(ctx.prompt), { session: new OsmosisMemorySession({ name: 'clerk' }) });
      }
    }
    const grader = defineGrader(({ threads }) => Number(Object.keys(threads)[0] === 'clerk'));
    const { turns, samples } = await rollout({ workflow: Shop, grader });
    expect(turns.map(({ thread }) => thread)).toEqual(['clerk', 'clerk']);
    expect(turns[1]!.after).toBe(0);
    expect(samples['clerk']!.reward).toBe(1);
  });
});

describe('examples/osmosis/server.ts', () => {
  const token = 'a-token-for-the-example';

  it('listens when it is run, takes a rollout, calls back, and stops when told to', async () => {
    await answering('Wish: returns<|im_end|>');
    const child = spawn(process.execPath, ['--conditions=trainyard-source', join(ROOT, 'examples/osmosis/server.ts')], {
      env: { ...process.env, ROLLOUT_SERVER_TOKEN: token },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    try {
      const [line] = (await once(child.stdout, 'data')) as [Buffer];
      const origin = /http:\S+/.exec(line.toString())![0];
      const { session, body } = controller.begin('r1', { label: 'returns' });
      expect((await send(origin, '/rollout', body)).status).toBe(401);
      expect((await send(origin, '/rollout', body, { authorization: `Bearer ${token}` })).status).toBe(202);
      const [completion, grade] = await controller.heard('r1', 2);
      expect([completion!.body.status, grade!.body.status]).toEqual(['success', 'success']);
      expect(grade!.body.sample).toMatchObject({ reward: 1, label: 'returns' });
      expect(session.seal()[0]!.request.messages.map(({ role }) => role)).toEqual(['system', 'user']);
      child.kill('SIGTERM');
      expect(await once(child, 'exit')).toEqual([0, null]);
    } finally {
      child.kill('SIGKILL');
    }
  });

  it('starts nothing when it is imported', async () => {
    const { server } = (await import('../../examples/osmosis/server.ts')) as { server: { fetch: typeof fetch } };
    expect(await (await server.fetch('http://any.example/health')).json()).toMatchObject({
      status: 'ok',
      concurrency: { max_concurrent: 8 },
    });
  });
});
