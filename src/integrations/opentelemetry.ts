/**
 * Rollouts as OpenTelemetry traces, by the GenAI semantic conventions: a root span for the rollout, in whose context the workflow runs, and
 * children for its model calls and its grading. Needs the package `@opentelemetry/api`; without it, or without an SDK that the user
 * registered, nothing happens. Spans of model calls are made when the rollout has ended, with the times at which they happened. Messages are
 * recorded only if the standard variable asks for it; task answers and what graders say about failures, never.
 */
import {
  type Attributes,
  context,
  ProxyTracerProvider,
  type Span,
  SpanKind,
  SpanStatusCode,
  type TimeInput,
  trace,
} from '@opentelemetry/api';
import { tokensOf } from '../core/turns.ts';
import type { Message, Trajectory, Turn, UnansweredCall } from '../core/types.ts';
import { within } from '../processes/limits.ts';
import type { RolloutTracing } from '../rollout/runner.ts';

/** `model`, `provider`: of the policy. */
interface Traced {
  readonly model: string;
  readonly provider: string;
}

const CAPTURE = 'OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT';
/** How long to wait for the user's exporter when a run ends. */
const FLUSH_MS = 10_000;

/** Undefined unless an SDK is registered. */
export function openTracing(policy: Traced): (RolloutTracing & AsyncDisposable) | undefined {
  const registered = trace.getTracerProvider();
  if (registered instanceof ProxyTracerProvider && registered.getDelegateTracer('trainyard') === undefined) return undefined;
  const tracer = trace.getTracer('trainyard');
  const isCaptured = /^(?:true|span_only|span_and_event)$/i.test(process.env[CAPTURE] ?? '');
  const child = (root: Span, name: string, startTime: TimeInput, kind: SpanKind, attributes: Attributes): Span =>
    tracer.startSpan(name, { kind, startTime, attributes }, trace.setSpan(context.active(), root));
  return {
    async rollout({ rolloutId, groupId, taskId, purpose }, workflow, run) {
      const ids = { rollout: rolloutId, group: groupId, task: taskId };
      const attributes = {
        'gen_ai.operation.name': 'invoke_workflow',
        'gen_ai.workflow.name': workflow,
        'trainyard.purpose': purpose,
        ...Object.fromEntries(Object.entries(ids).map(([name, id]) => [`trainyard.${name}.id`, id])),
      };
      const root = tracer.startSpan(`invoke_workflow ${workflow}`, { root: true, kind: SpanKind.INTERNAL, attributes });
      const grading = async <T>(grade: () => Promise<T>): Promise<T> => {
        const span = child(root, 'grade', Date.now(), SpanKind.INTERNAL, {});
        return await context.with(trace.setSpan(context.active(), span), grade).finally(() => span.end());
      };
      try {
        const trajectory = await context.with(trace.setSpan(context.active(), root), () => run(grading));
        if (!root.isRecording()) return trajectory;
        for (const turn of trajectory.turns) {
          const { name, attributes } = chatOf(turn, policy, isCaptured);
          child(root, name, turn.startedAt, SpanKind.CLIENT, attributes).end(turn.endedAt);
        }
        for (const call of trajectory.unanswered ?? []) {
          const span = child(root, `chat ${policy.model}`, call.startedAt, SpanKind.CLIENT, unansweredOf(call, policy));
          if (call.failure !== undefined) span.setStatus({ code: SpanStatusCode.ERROR });
          span.end(call.endedAt);
        }
        describe(root, trajectory);
        return trajectory;
      } catch (thrown) {
        root.setStatus({ code: SpanStatusCode.ERROR });
        throw thrown;
      } finally {
        root.end();
      }
    },
    [Symbol.asyncDispose]: async () => {
      // The command line exits right after a run; what a batching exporter still holds would be lost.
      const provider: object = trace.getTracerProvider();
      const own = 'getDelegate' in provider ? (provider.getDelegate as () => object).call(provider) : provider;
      if (!('forceFlush' in own)) return;
      // Whether its spans arrive is the user's SDK's business, and it reports that itself.
      await within(FLUSH_MS, (own.forceFlush as () => Promise<unknown>).call(own)).catch(() => {});
    },
  };
}

function describe(root: Span, { outcome, grade, turns }: Trajectory): void {
  root.setAttributes({ 'trainyard.outcome': outcome.kind, 'trainyard.grade': grade.kind, 'trainyard.turns': turns.length });
  if (outcome.kind === 'truncated') root.setAttribute('trainyard.limit', outcome.limit);
  const failed = [outcome, grade].find((ending) => ending.kind === 'failed');
  if (failed !== undefined) root.setAttribute('error.type', failed.code).setStatus({ code: SpanStatusCode.ERROR });
  if (grade.kind !== 'graded') return;
  const { value, success = value >= 1, parts = {} } = grade.reward;
  root.setAttribute('trainyard.reward', value);
  const result = (name: string, score: number, more: Attributes = {}): unknown =>
    root.addEvent('gen_ai.evaluation.result', {
      'gen_ai.evaluation.name': name,
      'gen_ai.evaluation.score.value': score,
      ...more,
    });
  result('reward', value, { 'gen_ai.evaluation.score.label': success ? 'pass' : 'fail' });
  for (const [name, score] of Object.entries(parts)) result(name, score);
}

function calledBy({ thread, role }: Pick<Turn, 'thread' | 'role'>): Attributes {
  return { 'gen_ai.operation.name': 'chat', 'gen_ai.conversation.id': thread, 'gen_ai.agent.name': role };
}

function chatOf(turn: Turn, { model: policy, provider }: Traced, isCaptured: boolean) {
  const { promptTokens, sampledTokens } = tokensOf(turn);
  const { temperature, maxTokens } = turn.sampling.effective;
  const isOther = turn.model !== undefined && turn.model !== policy;
  const model = isOther ? turn.model : policy;
  const attributes: Attributes = {
    ...calledBy(turn),
    'gen_ai.provider.name': isOther ? '_OTHER' : provider,
    'gen_ai.request.model': model,
    'gen_ai.request.temperature': temperature,
    'gen_ai.request.max_tokens': maxTokens,
    'gen_ai.response.finish_reasons': [turn.stopReason],
    'gen_ai.usage.input_tokens': promptTokens,
    'gen_ai.usage.output_tokens': sampledTokens,
    'trainyard.turn': turn.index,
    'trainyard.policy.version': turn.policyVersion,
    'trainyard.trainable': turn.trainable,
  };
  const output = { ...messageOf(turn.response), finish_reason: turn.stopReason };
  const messages = {
    'gen_ai.input.messages': JSON.stringify(turn.request.messages.map(messageOf)),
    'gen_ai.output.messages': JSON.stringify([output]),
  };
  return { name: `chat ${model}`, attributes: isCaptured ? { ...attributes, ...messages } : attributes };
}

function unansweredOf(call: UnansweredCall, { model, provider }: Traced): Attributes {
  const failed = call.failure && { 'error.type': call.failure.code };
  return { ...calledBy(call), 'gen_ai.provider.name': provider, 'gen_ai.request.model': model, ...failed };
}

/** In the conventions' form: a role and its parts. */
function messageOf({ role, content, reasoning, tool_calls: calls = [], tool_call_id: id }: Message) {
  const text = role === 'tool' ? { type: 'tool_call_response', id, response: content } : { type: 'text', content };
  return {
    role,
    parts: [
      ...(reasoning ? [{ type: 'reasoning', content: reasoning }] : []),
      ...(content ? [text] : []),
      ...calls.map(({ id, function: { name, arguments: given } }) => ({ type: 'tool_call', id, name, arguments: given })),
    ],
  };
}
