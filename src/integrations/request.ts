/**
 * What integrations share on the way from a framework's call to `handle.generate`. A model without a handle looks up the rollout at every
 * call, so one agent, created once per program, serves thousands of concurrent rollouts. Requests that the gateway refuses over HTTP are
 * refused here in the same words: both ways must give the same trajectory, or none. Importing this file turns off the frameworks'
 * telemetry.
 */
import { currentRollout, currentSamples, type SampleContext, type SampleView } from '../core/context.ts';
import type { GenerateRequest, Generation, ModelHandle } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { isObject, parsedJson } from '../core/json.ts';
import type { Message, Tool, ToolCall } from '../core/types.ts';
import { assistantMessage, given, toolOf } from '../gateway/dialects/dialect.ts';
import { quietFrameworks } from '../processes/agent-process.ts';

export { assistantMessage, given };

quietFrameworks();

export type Optional<Names extends string, T> = { readonly [Name in Names]?: T | undefined };

/** A handle, or a role of the rollout that the calling code runs in. Undefined means that rollout's role `default`. */
export type Seat = ModelHandle | string | undefined;

/** The handle for one call. Throws NO_ROLLOUT if called outside a rollout without a handle. */
export function handleOf(seat: Seat): ModelHandle {
  if (typeof seat === 'object') return seat;
  const rollout = currentRollout();
  if (rollout !== undefined) return rollout.model(seat);
  const asked = seat === undefined ? 'the policy' : `the policy as role ${JSON.stringify(seat)}`;
  throw new TrainyardError(
    'NO_ROLLOUT',
    `${asked} was called outside of a rollout`,
    'call the agent inside run(ctx), or give the model a handle: policy(ctx.model())',
  );
}

/** For frameworks that ask for the model's name without calling it. */
export function nameOf(seat: Seat): string {
  return typeof seat === 'object' ? seat.name : (seat ?? 'policy');
}

/** The running rollout's samples, for the Osmosis classes. Throws NO_ROLLOUT. */
export function activeSamples(): SampleContext {
  const context = currentSamples();
  if (context !== undefined) return context;
  throw new TrainyardError(
    'NO_ROLLOUT',
    'OsmosisRolloutModel requires an active RolloutContext',
    'build and run the agent inside run(ctx) of an AgentWorkflow',
  );
}

/** Throws for an option in Python's spelling, which the framework would silently ignore. */
export function inCamelCase<T extends object>(options: T, whose: string): T {
  const snake = Object.keys(options).find((name) => /[a-z]_[a-z]/.test(name));
  if (snake === undefined) return options;
  const ours = snake.replaceAll(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
  throw new TrainyardError('CONFIG_INVALID', `${whose} has no option ${snake}`, `it is ${ours} here`);
}

export function placeholderUsed(hint: string): TrainyardError {
  return new TrainyardError('NO_ROLLOUT', 'OsmosisRolloutModel is a placeholder and cannot be called itself', hint);
}

export type ToolChoice = 'auto' | 'none' | 'required' | { readonly tool: string };

/** With the choice `none`, the policy is shown no tools. */
export function toolsFor(tools: readonly Tool[], choice: ToolChoice): Pick<GenerateRequest, 'tools' | 'tool'> {
  if (choice === 'none') return {};
  if (choice === 'auto') return { tools };
  return { tools, tool: choice === 'required' ? true : choice.tool };
}

/** Throws REQUEST_INVALID for a tool that only a provider could run. */
export function functionTool(tool: {
  readonly type?: string;
  readonly name: string;
  readonly description?: string | undefined;
  readonly parameters?: unknown;
}): Tool {
  const { type = 'function', name } = tool;
  if (type === 'function') return toolOf(tool);
  throw unsupported(`tool ${JSON.stringify(name)}`, `of type ${JSON.stringify(type)}`, 'the policy has no tools of its own');
}

/** Refuses settings that would change what is sampled without being recorded; 0 changes nothing. */
export function refusePenalties(penalties: Readonly<Record<string, number | undefined>>): void {
  for (const [name, value] of Object.entries(penalties)) {
    if (value) throw unsupported(name, `of ${value}`, 'it would change what is sampled without being recorded; leave it out');
  }
}

export function unsupported(what: string, found: string, hint?: string): TrainyardError {
  return new TrainyardError('REQUEST_INVALID', `${what} ${found} is not supported`, { param: what, ...given({ hint }) });
}

export function notText(where: string, kind: string): TrainyardError {
  return unsupported(where, `of type ${JSON.stringify(kind)}`, 'the policy reads text only; describe it in words');
}

/** Token counts; undefined if the policy is in another process. */
export function tokensOf({ turn }: Generation): { readonly prompt: number; readonly sampled: number } | undefined {
  return turn && { prompt: turn.promptIds.length, sampled: turn.sampledIds.length };
}

/** What a part of an assistant message says; empty if the policy need not read it. */
export interface Said {
  readonly text?: string | undefined;
  readonly reasoning?: string | undefined;
  readonly call?: ToolCall;
}

/** Rebuilds the policy's message from a framework's parts. Calls without text have null content, as recorded. */
export function assistantOf<P>(parts: readonly P[], read: (part: P) => Said): Message {
  const said = parts.map(read);
  const content = said.map(({ text = '' }) => text).join('');
  const calls = said.flatMap(({ call }) => call ?? []);
  const reasoning = said.map(({ reasoning: thought = '' }) => thought).join('');
  return assistantMessage(content === '' && calls.length > 0 ? null : content, calls, reasoning);
}

/** A conversation for graders. If it cannot be converted to messages, graders see the framework's own form. */
export function sampleView(id: string, asMessages: () => readonly Message[], raw: readonly object[]): SampleView {
  try {
    return { id, messages: asMessages() };
  } catch {
    return { id, messages: raw as readonly Message[] };
  }
}

export function endOf<T>({ stopReason, toolCalls }: Generation, words: { length: T; calls: T; stop: T }): T {
  if (stopReason === 'length') return words.length;
  return toolCalls.length > 0 ? words.calls : words.stop;
}

export function toolCall(id = '', name = '', input: unknown): ToolCall {
  return { id, type: 'function', function: { name, arguments: argumentsText(input) } };
}

/**
 * Arguments that a framework parsed, as text again. If they were not a JSON object, keeps their text, so that the conversation continues
 * what was sampled.
 */
export function argumentsText(input: unknown): string {
  return typeof input === 'string' ? input : (JSON.stringify(input) ?? '{}');
}

export const isJsonObject = (text: string): boolean => isObject(parsedJson(text));
