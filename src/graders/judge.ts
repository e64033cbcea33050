/**
 * `judge` and `rubric`: graders that ask a language model on any OpenAI-compatible server, or the run's own policy.
 *
 * The judge sees the agent's text as fenced data, and its reply counts only if it repeats a check that this text could not know. Without
 * scores the rollout is unscorable. A blank answer gets the bottom of the scale without a call. Mistakes in the options throw when the
 * grader is defined, all in one message.
 */
import { randomUUID } from 'node:crypto';
import { mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Grader, GraderContext, GraderInput, GraderResult } from '../core/contracts.ts';
import { defineGrader, unscorable } from '../core/define.ts';
import { baseURLFault, unknownOptions } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { defined, digestOf, isObject, parsedJson } from '../core/json.ts';
import type { ChatServer } from '../gateway/chat-client.ts';
import { longestMs } from '../gateway/model-server.ts';
import { answerOf, checkOptions, type OptionKinds, optionFaults, optionKind, saidBy, type TextOptions } from './answer-text.ts';
import { askJudge, type Criterion, cleaned, type Patience, type Scores, type Shown } from './judge-request.ts';

export interface JudgeEndpoint {
  readonly baseURL: string;
  readonly model: string;
  /** Name of the environment variable that holds the key. Absent: no key is sent. */
  readonly apiKeyEnv?: string;
  /** Default: openai. */
  readonly api?: 'openai' | 'anthropic';
}

export interface JudgeOptions extends TextOptions, Partial<Patience> {
  /** `policy`: the run's current policy. Its turns as a judge are never trained. */
  readonly model: JudgeEndpoint | 'policy';
  /** How to judge. The judge is told to follow these words only. */
  readonly instructions: string;
  /** Default [0, 1]. */
  readonly scale?: readonly [low: number, high: number];
  /** Lowest value that is a success. Default: the top of the scale. */
  readonly successFrom?: number;
  /** Whether the judge sees the task's prompt. Default true. */
  readonly showPrompt?: boolean;
  /** Whether the judge sees the task's answer. Default false. */
  readonly showAnswer?: boolean;
  /** Limit per shown text; the middle of longer ones is cut. Default 20,000. */
  readonly maxCharacters?: number;
  /** Whether to cache scores in memory; a directory caches them there, too. Default true. The policy's are never cached: it changes. */
  readonly cache?: boolean | string;
  /** Price of a million tokens, for the metric `cost`. */
  readonly price?: { readonly prompt: number; readonly completion: number };
}

export type RubricOptions = Omit<JudgeOptions, 'instructions'> & Partial<Pick<JudgeOptions, 'instructions'>>;

export interface RubricCriterion extends Criterion {
  /** Default 1. */
  readonly weight?: number;
}

const KINDS: OptionKinds = {
  model: endpointFaults,
  instructions: 'text',
  scale: optionKind(
    '[low, high] with low below high',
    (scale) => Array.isArray(scale) && scale.length === 2 && scale.every(Number.isFinite) && scale[0] < scale[1],
  ),
  successFrom: 'number',
  showPrompt: 'boolean',
  showAnswer: 'boolean',
  maxCharacters: 'count',
  cache: optionKind(
    'true, false or a directory',
    (cache) => typeof cache === 'boolean' || (typeof cache === 'string' && cache !== ''),
  ),
  price: (price) => optionFaults(price, { prompt: 'amount', completion: 'amount' }, ['prompt', 'completion'], 'price'),
  timeoutMs: 'count',
  tries: 'count',
  backoffMs: 'natural',
  maxTokens: 'count',
  of: 'function',
};
const PATIENCE: Patience = { timeoutMs: 30_000, tries: 3, backoffMs: 500, maxTokens: 1024 };
const MAX_CHARACTERS = 20_000;
const MOST_CRITERIA = 50;

/** One score for the whole answer. Throws GRADER_INVALID. */
export function judge(options: JudgeOptions): Grader {
  return asking('judge', options, [], ([score]) => ({ value: score! }));
}

/** One score per criterion, all in one call. The value is their weighted mean; the parts are the scores. Throws GRADER_INVALID. */
export function rubric(criteria: readonly RubricCriterion[], options: RubricOptions): Grader {
  const faults = Array.isArray(criteria) ? [...criteriaFaults(criteria)] : ['expected a list of { name, description, weight }'];
  if (faults.length > 0) throw new TrainyardError('GRADER_INVALID', `rubric: ${faults.join('; ')}`);
  const weights = criteria.map(({ weight = 1 }) => weight);
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const instructions = 'Judge the answer by each of the criteria below, each for itself.';
  return asking('rubric', { ...options, instructions: options?.instructions ?? instructions }, criteria, (scores) => ({
    value: scores.reduce((sum, score, i) => sum + score * weights[i]!, 0) / total,
    parts: Object.fromEntries(criteria.map(({ name }, i) => [name, scores[i]!])),
  }));
}

type Combine = (scores: readonly number[]) => Exclude<GraderResult, number>;

function asking(kind: string, options: JudgeOptions, criteria: readonly Criterion[], combine: Combine): Grader {
  const hint = `write ${kind}({ model: { baseURL, model, apiKeyEnv }, instructions }), or model: 'policy'`;
  checkOptions(kind, options, KINDS, ['model', 'instructions'], hint);
  const {
    model,
    instructions,
    scale = [0, 1],
    successFrom = scale[1],
    of,
    timeoutMs,
    tries,
    backoffMs,
    maxTokens,
    price,
  } = options;
  const patience = { ...PATIENCE, ...defined({ timeoutMs, tries, backoffMs, maxTokens }) };
  const by = { instructions, scale, criteria: criteria.map(({ name, description }) => ({ name, description })) };
  const count = Math.max(1, criteria.length);
  const cache = scoreCache(options, count);
  const rewardOf = ({ scores, clamped }: Scores, metrics: Readonly<Record<string, number>>): GraderResult => {
    const { value, ...parts } = combine(scores);
    const success = value >= successFrom - Number.EPSILON * Math.abs(successFrom) * 8;
    return { value, success, ...parts, metrics: { ...metrics, clamped } };
  };
  return defineGrader({
    name: `${kind}(${model === 'policy' ? 'policy' : model.model})`,
    judges: true,
    ...(model === 'policy' ? { asksPolicy: true } : model.apiKeyEnv === undefined ? {} : { needsEnv: [model.apiKeyEnv] }),
    deadlineMs: longestMs(patience),
    async grade(input, ctx) {
      const said = saidBy(input, of);
      if (cleaned(said, said.length).trim() === '') {
        return { ...combine(Array(count).fill(scale[0])), success: false, metrics: { calls: 0 } };
      }
      const shown = shownOf(input, said, options);
      const server = serverOf(model, ctx);
      const key = digestOf([JSON.stringify([server.baseURL, server.name, by, shown, patience.maxTokens])]);
      const known = await cache.get(key);
      if (known !== undefined) return rewardOf(known, { calls: 0, cached: 1 });
      const { value, calls, promptTokens, completionTokens } = await askJudge(server, by, shown, patience, ctx.signal);
      await cache.put(key, value);
      const cost = price && (promptTokens * price.prompt + completionTokens * price.completion) / 1e6;
      return rewardOf(value, { calls, cached: 0, promptTokens, completionTokens, ...defined({ cost }) });
    },
  });
}

/** The reference has its own part, and only if `showAnswer` is set. */
function shownOf(input: GraderInput, said: string, options: JudgeOptions): readonly Shown[] {
  const { showPrompt = true, showAnswer = false, maxCharacters = MAX_CHARACTERS } = options;
  const part = (title: string, text: string): Shown => ({ title, text: cleaned(text, maxCharacters) });
  const prompt = input.task.prompt.map(({ role, content }) => `${role}: ${content}`).join('\n\n');
  const answer = showAnswer ? answerOf(input) : '';
  return [
    ...(showPrompt ? [part('TASK', prompt)] : []),
    ...(showAnswer ? [part('REFERENCE ANSWER', typeof answer === 'string' ? answer : JSON.stringify(answer))] : []),
    part('ANSWER OF THE AGENT', said),
  ];
}

/** Reads the key per grading: processes that never grade import the entry without having it. Throws GRADER_UNSCORABLE. */
function serverOf(model: JudgeOptions['model'], ctx: GraderContext): ChatServer {
  if (model === 'policy') {
    return ctx.model ?? unscorable("this judge asks the run's policy, and there is none: it is graded outside of a run");
  }
  const { baseURL, model: name, apiKeyEnv, api = 'openai' } = model;
  if (apiKeyEnv === undefined) return { baseURL, name, api };
  const apiKey = process.env[apiKeyEnv]?.trim() ?? '';
  if (apiKey === '') return unscorable(`the environment variable ${apiKeyEnv} with the judge's key is not set`);
  if (!/^[\x21-\x7e]+$/.test(apiKey)) return unscorable(`the environment variable ${apiKeyEnv} holds something that is no key`);
  return { baseURL, name, apiKey, api };
}

const MOST_KEPT = 10_000;

interface ScoreCache {
  get(key: string): Promise<Scores | undefined>;
  put(key: string, scores: Scores): Promise<void>;
}

/**
 * Keyed by a digest of the whole question: the latest scores in memory, all of them in the directory if there is one. Failures are never
 * cached. An invalid file counts as missing; a directory that cannot be written loses the saving, never the scores.
 */
function scoreCache({ model, cache = true, scale: [low, high] = [0, 1] }: JudgeOptions, count: number): ScoreCache {
  if (model === 'policy' || cache === false) return { get: async () => undefined, put: async () => {} };
  const kept = new Map<string, Scores>();
  const keep = (key: string, scores: Scores): Scores => {
    // A Map iterates in insertion order, so the first key is the least recently used.
    kept.delete(key);
    kept.set(key, scores);
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value!);
    return scores;
  };
  const read = async (key: string): Promise<Scores | undefined> => {
    if (cache === true) return undefined;
    const text = await readFile(join(cache, `${key}.json`), 'utf8').catch(() => '');
    const { scores, clamped } = (parsedJson(text) ?? {}) as Partial<Scores>;
    const isUsable = Array.isArray(scores) && scores.length === count && scores.every((score) => score >= low && score <= high);
    return isUsable && Number.isSafeInteger(clamped) ? { scores, clamped: clamped! } : undefined;
  };
  return {
    async get(key) {
      const known = kept.get(key) ?? (await read(key));
      return known && keep(key, known);
    },
    async put(key, { scores, clamped }) {
      keep(key, { scores, clamped });
      if (cache === true) return;
      // Renamed into place, so that the file is complete or absent.
      const temporary = join(cache, `${key}.${randomUUID()}.tmp`);
      try {
        await mkdir(cache, { recursive: true });
        await writeFile(temporary, `${JSON.stringify({ scores, clamped })}\n`);
        await rename(temporary, join(cache, `${key}.json`));
      } catch {
        await rm(temporary, { force: true }).catch(() => {});
      }
    },
  };
}

function* criteriaFaults(criteria: readonly RubricCriterion[]): Generator<string> {
  if (criteria.length === 0 || criteria.length > MOST_CRITERIA) {
    yield `found ${criteria.length} criteria, expected from 1 to ${MOST_CRITERIA}`;
  }
  const kinds: OptionKinds = {
    name: optionKind('a name', (name) => typeof name === 'string' && name !== '' && name !== '__proto__'),
    description: 'text',
    weight: 'positive',
  };
  for (const [i, criterion] of criteria.entries()) {
    yield* optionFaults(criterion, kinds, ['name', 'description'], `criterion ${i + 1}`);
  }
  const names = criteria.map((criterion) => criterion?.name);
  const twice = names.find((name, i) => names.indexOf(name) !== i);
  if (twice !== undefined) yield `two criteria are named ${JSON.stringify(twice)}`;
  const weights = criteria.map((criterion) => criterion?.weight ?? 1);
  if (weights.every(Number.isFinite) && weights.reduce((sum, weight) => sum + weight, 0) === Infinity) {
    yield 'the weights are too large to be added up';
  }
}

/** Messages omit values: they may hold a password or a key. */
function* endpointFaults(model: unknown): Generator<string> {
  if (model === 'policy') return;
  if (!isObject(model)) {
    yield `model is ${JSON.stringify(model) ?? 'missing'}, expected { baseURL, model, apiKeyEnv } or 'policy'`;
    return;
  }
  const { baseURL, model: name, apiKeyEnv, api = 'openai', ...others } = model;
  yield* unknownOptions(others, ['baseURL', 'model', 'apiKeyEnv', 'api'], 'model');
  if (api !== 'openai' && api !== 'anthropic') yield "model.api: expected 'openai' or 'anthropic'";
  if (Object.keys(others).some((key) => /key|token|secret/i.test(key))) {
    yield 'put the key into the environment and name the variable in model.apiKeyEnv';
  }
  const fault = baseURLFault(baseURL);
  if (fault !== undefined) yield `model.baseURL: ${fault}`;
  if (typeof name !== 'string' || name === '') yield 'model.model: expected the name of a model';
  if (apiKeyEnv !== undefined && (typeof apiKeyEnv !== 'string' || !/^\w+$/.test(apiKeyEnv))) {
    yield 'model.apiKeyEnv: expected the name of an environment variable, not a key';
  }
}
