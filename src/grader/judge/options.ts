/** What a judge is made with, and whether it can be: every mistake is found when it is defined, and all are told together. */
import type { ChatServer } from '../../core/chat-completions.ts';
import type { GraderContext } from '../../core/contracts.ts';
import { unscorable } from '../../core/define-grader.ts';
import { unknownOptions } from '../../core/near-name.ts';
import { checkOptions, type OptionKinds, type TextOptions } from '../options.ts';
import type { Patience } from './asking.ts';

/** An OpenAI-compatible server. */
export interface JudgeEndpoint {
  readonly baseURL: string;
  readonly model: string;
  /** Name of the environment variable with the key; absent: none is sent. */
  readonly apiKeyEnv?: string;
}

export interface JudgeOptions extends TextOptions, Partial<Patience> {
  /** `policy`: the run's own policy, as it is at that moment. What it says as a judge is never trained. */
  readonly model: JudgeEndpoint | 'policy';
  /** How to judge, in words. The only words that the judge is told to follow. */
  readonly instructions: string;
  /** Default from 0 to 1. */
  readonly scale?: readonly [low: number, high: number];
  /** From which value on a rollout is a success. Default: the top of the scale. */
  readonly successFrom?: number;
  /** Whether the judge sees the task's prompt. Default true. */
  readonly showPrompt?: boolean;
  /** Whether the judge sees the task's answer. Default false. */
  readonly showAnswer?: boolean;
  /** Of each text that is shown; the middle of longer ones is left out. Default 20,000. */
  readonly maxCharacters?: number;
  /** Whether verdicts are kept: in memory, or in this directory too. Default true. Those of the policy never are: it changes. */
  readonly cache?: boolean | string;
  /** What a million tokens cost, for the metric `cost`. */
  readonly price?: { readonly prompt: number; readonly completion: number };
}

const ENDPOINT: readonly string[] = ['baseURL', 'model', 'apiKeyEnv'] satisfies readonly (keyof JudgeEndpoint)[];

export const PATIENCE: Patience = { timeoutMs: 30_000, tries: 3, backoffMs: 500, maxTokens: 1024 };

const KINDS: OptionKinds = {
  model: 'any',
  instructions: 'text',
  scale: 'any',
  successFrom: 'number',
  showPrompt: 'boolean',
  showAnswer: 'boolean',
  maxCharacters: 'count',
  cache: 'any',
  price: 'any',
  timeoutMs: 'count',
  tries: 'count',
  backoffMs: 'natural',
  maxTokens: 'count',
  of: 'function',
};

export function checkJudgeOptions(options: JudgeOptions, whose: string): void {
  const hint = `write ${whose}({ model: { baseURL, model, apiKeyEnv }, instructions }), or model: 'policy'`;
  checkOptions(whose, options, KINDS, () => faultsIn(options), hint);
}

function* faultsIn(options: Partial<JudgeOptions>): Generator<string> {
  const { model, instructions, scale = [0, 1], cache } = options;
  if (model !== 'policy') yield* endpointFaults(model);
  if (instructions === undefined) yield 'instructions: expected a text';
  const isScale = Array.isArray(scale) && scale.length === 2 && scale.every(Number.isFinite) && scale[0]! < scale[1]!;
  if (!isScale) yield `scale is ${JSON.stringify(scale)}, expected [low, high] with low below high`;
  if (cache !== undefined && typeof cache !== 'boolean' && (typeof cache !== 'string' || cache === '')) {
    yield 'cache: expected true, false or a directory';
  }
  const price: Readonly<Record<string, unknown>> = options.price ?? { prompt: 0, completion: 0 };
  yield* unknownOptions(price, ['prompt', 'completion'], 'price');
  for (const name of ['prompt', 'completion']) {
    const value = Number(price[name]);
    if (!(Number.isFinite(value) && value >= 0)) yield `price.${name} is ${String(price[name])}, expected a number from 0 up`;
  }
}

function* endpointFaults(model: unknown): Generator<string> {
  if (typeof model !== 'object' || model === null) {
    yield `model is ${JSON.stringify(model) ?? 'missing'}, expected { baseURL, model, apiKeyEnv } or 'policy'`;
    return;
  }
  // A key in the source would be copied with it; it is not repeated here.
  const secret = Object.keys(model).find((key) => /key|token|secret/i.test(key) && !ENDPOINT.includes(key));
  if (secret !== undefined) yield `model has no ${secret}; put the key into the environment and name the variable in apiKeyEnv`;
  const others = Object.fromEntries(Object.entries(model).filter(([key]) => key !== secret));
  yield* unknownOptions(others, ENDPOINT, 'model');
  const { baseURL, model: name, apiKeyEnv } = model as Partial<Record<keyof JudgeEndpoint, unknown>>;
  const url = typeof baseURL === 'string' ? URL.parse(baseURL) : null;
  // Not repeated in the message: it may hold a password.
  if (url === null || !/^https?:$/.test(url.protocol)) yield 'model.baseURL: expected a URL that begins with http:// or https://';
  else if (url.username !== '' || url.password !== '') yield 'model.baseURL: expected a URL without user and password';
  else if (url.search !== '' || url.hash !== '') yield 'model.baseURL: expected a URL without ? and #: a path is added to it';
  if (typeof name !== 'string' || name === '') yield 'model.model: expected the name of a model';
  if (apiKeyEnv !== undefined && (typeof apiKeyEnv !== 'string' || !/^\w+$/.test(apiKeyEnv))) {
    yield 'model.apiKeyEnv: expected the name of an environment variable, not a key';
  }
}

/**
 * Whom to ask. Read with each grading, because an entry is imported by processes that never grade and do not have the key. Throws
 * GRADER_UNSCORABLE.
 */
export function serverOf(model: JudgeOptions['model'], ctx: GraderContext): ChatServer {
  if (model === 'policy') {
    return ctx.model ?? unscorable("this judge asks the run's policy, and there is none: it is graded outside of a run");
  }
  const { baseURL, model: name, apiKeyEnv } = model;
  if (apiKeyEnv === undefined) return { baseURL, name };
  const apiKey = process.env[apiKeyEnv]?.trim() ?? '';
  if (apiKey === '') return unscorable(`the environment variable ${apiKeyEnv} with the judge's key is not set`);
  if (!/^[\x21-\x7e]+$/.test(apiKey)) return unscorable(`the environment variable ${apiKeyEnv} holds something that is no key`);
  return { baseURL, name, apiKey };
}
