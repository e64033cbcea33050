/** Against the interfaces of `@opentelemetry/api`: a provider that keeps spans, and a context manager, as an SDK registers them. */
import { AsyncLocalStorage } from 'node:async_hooks';
import { type Attributes, type Context, context, ROOT_CONTEXT, type Span, type Tracer, trace } from '@opentelemetry/api';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { rolloutsThrough, scriptedGateway } from '../../test/fixtures/scripted-gateway.ts';
import { defineGrader, defineWorkflow } from '../core/define.ts';
import { openTracing } from './opentelemetry.ts';

class Kept {
  ended = false;
  readonly events: unknown[] = [];
  readonly name: string;
  readonly attributes: Attributes;
  readonly parent: Kept | undefined;
  status: unknown;
  constructor(name: string, attributes: Attributes, parent: Kept | undefined) {
    [this.name, this.attributes, this.parent] = [name, { ...attributes }, parent];
  }
  isRecording = () => !this.ended;
  setAttribute = (name: string, value: never) => this.setAttributes({ [name]: value });
  setAttributes = (all: Attributes) => {
    Object.assign(this.attributes, all);
    return this;
  };
  addEvent = (name: string, attributes: Attributes) => {
    this.events.push([name, attributes]);
    return this;
  };
  setStatus = (status: unknown) => Object.assign(this, { status });
  end = () => Object.assign(this, { ended: true });
}

let [spans, flushed]: [Kept[], number] = [[], 0];
beforeEach(() => {
  [spans, flushed] = [[], 0];
  const startSpan: Tracer['startSpan'] = (name, options = {}, parent = context.active()) => {
    const above = options.root ? undefined : (trace.getSpan(parent) as unknown as Kept);
    spans.push(new Kept(name, options.attributes ?? {}, above));
    return spans.at(-1) as unknown as Span;
  };
  const provider = { getTracer: () => ({ startSpan }) as Tracer, forceFlush: async () => void flushed++ };
  trace.setGlobalTracerProvider(provider);
  const storage = new AsyncLocalStorage<Context>();
  context.setGlobalContextManager({
    active: () => storage.getStore() ?? ROOT_CONTEXT,
    with: (own, run, self, ...args) => storage.run(own, () => run.call(self as never, ...args)),
    bind: (_, target) => target,
    enable: () => undefined as never,
    disable: () => undefined as never,
  });
});
afterEach(() => {
  trace.disable();
  context.disable();
  vi.unstubAllEnvs();
});

const task = { id: 't1', prompt: [{ role: 'user', content: 'What is the word?' }], answer: 'SECRET' } as const;
const workflow = defineWorkflow(async (ctx) => {
  trace.getTracer('agent').startSpan('my own').end();
  const { baseURL, apiKey, fetch, name: model } = ctx.model();
  const headers = { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' };
  const body = JSON.stringify({ model, messages: ctx.prompt });
  await fetch(`${baseURL}/chat/completions`, { method: 'POST', headers, body });
});
const grader = defineGrader(() => {
  trace.getTracer('grader').startSpan('looked up').end();
  return { value: 0.5, parts: { format: 1 } };
});

async function traced(): Promise<void> {
  await using tracing = openTracing({ model: 'small', provider: 'trainyard' });
  await rolloutsThrough(scriptedGateway().gateway)({ workflow, grader, tracing }, task);
}

it('a rollout is a trace: its model calls, its grading and the agent’s own spans are its children', async () => {
  await traced();
  const [root] = spans;
  expect(spans.map(({ name, parent, ended }) => [name, parent?.name, ended])).toEqual([
    ['invoke_workflow workflow', undefined, true],
    ['my own', 'invoke_workflow workflow', true],
    ['grade', 'invoke_workflow workflow', true],
    ['looked up', 'grade', true],
    ['chat small', 'invoke_workflow workflow', true],
  ]);
  expect(root?.attributes).toMatchObject({
    ...{ 'trainyard.rollout.id': 'r0', 'trainyard.task.id': 't1', 'trainyard.outcome': 'completed', 'trainyard.reward': 0.5 },
  });
  const named = (name: string, value: number) => ({ 'gen_ai.evaluation.name': name, 'gen_ai.evaluation.score.value': value });
  expect(root?.events).toEqual([
    ['gen_ai.evaluation.result', { ...named('reward', 0.5), 'gen_ai.evaluation.score.label': 'fail' }],
    ['gen_ai.evaluation.result', named('format', 1)],
  ]);
  expect(spans.at(-1)?.attributes).toMatchObject({
    ...{ 'gen_ai.operation.name': 'chat', 'gen_ai.provider.name': 'trainyard', 'gen_ai.request.model': 'small' },
    ...{ 'gen_ai.response.finish_reasons': ['stop'], 'gen_ai.usage.output_tokens': expect.any(Number) },
  });
  expect(flushed).toBe(1);
});

it('messages are recorded only if the standard variable asks for it, the answer never', async () => {
  await traced();
  expect(JSON.stringify(spans.map(({ attributes }) => attributes))).not.toMatch(/What is the word|SECRET/);
  vi.stubEnv('OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT', 'SPAN_ONLY');
  await traced();
  const { attributes } = spans.at(-1)!;
  expect(JSON.parse(attributes['gen_ai.input.messages'] as string)).toEqual([
    { role: 'user', parts: [{ type: 'text', content: 'What is the word?' }] },
  ]);
  expect(attributes['gen_ai.output.messages']).toContain('answer 0');
  expect(JSON.stringify(spans.map((span) => [span.attributes, span.events]))).not.toContain('SECRET');
});
