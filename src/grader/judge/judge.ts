/**
 * `judge` and `rubric`: graders that ask a language model. Any OpenAI-compatible server, or the run's own policy.
 *
 * The judge sees the agent's text as data, between fences, and its verdict counts only if it repeats a check that the agent's text could
 * not know. A judge that cannot be asked or gives no verdict makes the rollout unscorable. An answer that says nothing at all gets the
 * bottom of the scale without a call.
 */
import type { Grader, GraderInput, GraderResult } from '../../core/contracts.ts';
import { defineGrader } from '../../core/define-grader.ts';
import { TrainyardError } from '../../core/errors.ts';
import { unknownOptions } from '../../core/near-name.ts';
import { answerOf, saidBy } from '../built-in/said.ts';
import { type Asked, askJudge, MOST_WAIT_MS } from './asking.ts';
import type { OptionalParameter } from './completion.ts';
import { cleaned, type Shown } from './fence.ts';
import { checkJudgeOptions, type JudgeOptions, PATIENCE, serverOf } from './options.ts';
import type { Criterion, JudgedBy } from './question.ts';
import type { Verdict } from './verdict.ts';
import { questionHash, verdictCache } from './verdict-cache.ts';

export interface RubricCriterion extends Criterion {
  /** Default 1. */
  readonly weight?: number;
}

export type RubricOptions = Omit<JudgeOptions, 'instructions'> & Partial<Pick<JudgeOptions, 'instructions'>>;

const MAX_CHARACTERS = 20_000;
const MOST_CRITERIA = 50;

/** One score for the whole answer. Throws GRADER_INVALID. */
export function judge(options: JudgeOptions): Grader {
  return asking('judge', options, [], ([score]) => ({ value: score! }));
}

/** One score for each criterion, all asked at once. The value is their mean by weight; they are the parts. Throws GRADER_INVALID. */
export function rubric(criteria: readonly RubricCriterion[], options: RubricOptions): Grader {
  checkCriteria(criteria);
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
  checkJudgeOptions(options, kind);
  const { model, instructions, scale = [0, 1], successFrom = scale[1], of } = options;
  const patience = { ...PATIENCE, ...definedIn(options) };
  const by: JudgedBy = { instructions, scale, criteria: criteria.map(({ name, description }) => ({ name, description })) };
  const asked = Math.max(1, criteria.length);
  // What is not sealed, for want of a key, is at least no number that a judge could not have given.
  const isOfScale = ({ scores }: Verdict): boolean =>
    scores.length === asked && scores.every((score) => score >= scale[0] && score <= scale[1]);
  const cache = cacheOf(options);
  const unsupported = new Set<OptionalParameter>();
  const rewardOf = (verdict: Verdict, metrics: Readonly<Record<string, number>>): GraderResult => {
    const { value, ...parts } = combine(verdict.scores);
    const success = value >= successFrom - Number.EPSILON * Math.abs(successFrom) * 8;
    return { value, success, ...parts, metrics: { ...metrics, clamped: verdict.clamped } };
  };
  return defineGrader({
    name: `${kind}(${model === 'policy' ? 'policy' : model.model})`,
    judges: true,
    ...(model === 'policy' ? { asksPolicy: true } : model.apiKeyEnv === undefined ? {} : { needsEnv: [model.apiKeyEnv] }),
    deadlineMs: patience.tries * (patience.timeoutMs + MOST_WAIT_MS),
    async grade(input, ctx) {
      const said = saidBy(input, of);
      if (cleaned(said, said.length).trim() === '') {
        const bottom = combine(Array.from({ length: asked }, () => scale[0]));
        return { ...bottom, success: false, metrics: { calls: 0 } };
      }
      const shown = shownOf(input, said, options);
      const server = serverOf(model, ctx);
      const { apiKey = '' } = server;
      const question = questionHash([server.baseURL, server.name, by, shown, patience.maxTokens]);
      const known = await cache?.get(question, apiKey);
      if (known !== undefined && isOfScale(known)) return rewardOf(known, { calls: 0, cached: 1 });
      const reply = await askJudge(server, by, shown, patience, unsupported, ctx.signal);
      await cache?.put(question, apiKey, reply.verdict);
      return rewardOf(reply.verdict, metricsOf(reply, options));
    },
  });
}

function cacheOf({ model, cache = true }: JudgeOptions): ReturnType<typeof verdictCache> | undefined {
  if (model === 'policy' || cache === false) return undefined;
  return verdictCache(cache === true ? undefined : cache);
}

/** The reference is in a part of its own, and only where it was asked for. */
function shownOf(input: GraderInput, said: string, options: JudgeOptions): readonly Shown[] {
  const { showPrompt = true, showAnswer = false, maxCharacters = MAX_CHARACTERS } = options;
  const part = (title: string, text: string): Shown => ({ title, text: cleaned(text, maxCharacters) });
  const prompt = input.task.prompt.map(({ role, content }) => `${role}: ${content}`).join('\n\n');
  const reference = (): string => {
    const answer = answerOf(input);
    return typeof answer === 'string' ? answer : JSON.stringify(answer);
  };
  return [
    ...(showPrompt ? [part('TASK', prompt)] : []),
    ...(showAnswer ? [part('REFERENCE ANSWER', reference())] : []),
    part('ANSWER OF THE AGENT', said),
  ];
}

function metricsOf({ calls, promptTokens, completionTokens }: Asked, { price }: JudgeOptions): Readonly<Record<string, number>> {
  const cost = price && (promptTokens * price.prompt + completionTokens * price.completion) / 1e6;
  return { calls, cached: 0, promptTokens, completionTokens, ...(cost === undefined ? {} : { cost }) };
}

function definedIn({ timeoutMs, tries, backoffMs, maxTokens }: JudgeOptions): Partial<typeof PATIENCE> {
  const given = Object.entries({ timeoutMs, tries, backoffMs, maxTokens }).filter(([, value]) => value !== undefined);
  return Object.fromEntries(given);
}

function checkCriteria(criteria: readonly RubricCriterion[]): void {
  const faults = Array.isArray(criteria) ? [...criteriaFaults(criteria)] : ['expected a list of { name, description, weight }'];
  if (faults.length > 0) throw new TrainyardError('GRADER_INVALID', `rubric: ${faults.join('; ')}`);
}

function* criteriaFaults(criteria: readonly RubricCriterion[]): Generator<string> {
  if (criteria.length === 0 || criteria.length > MOST_CRITERIA) {
    yield `found ${criteria.length} criteria, expected from 1 to ${MOST_CRITERIA}`;
  }
  const seen = new Set<string>();
  for (const [i, criterion] of criteria.entries()) {
    if (typeof criterion !== 'object' || criterion === null) {
      yield `criterion ${i + 1} is no { name, description, weight }`;
      continue;
    }
    const { name, description, weight = 1 } = criterion;
    yield* unknownOptions(criterion, ['name', 'description', 'weight'], `criterion ${i + 1}`);
    if (typeof name !== 'string' || name === '' || name === '__proto__') yield `criterion ${i + 1} has no usable name`;
    else if (seen.has(name)) yield `two criteria are named ${JSON.stringify(name)}`;
    seen.add(name);
    if (typeof description !== 'string' || description.trim() === '') yield `criterion ${i + 1} has no description`;
    if (!(Number.isFinite(weight) && weight > 0))
      yield `the weight of criterion ${i + 1} is ${weight}, expected a number above 0`;
  }
  const weights = criteria.map((criterion) => criterion?.weight ?? 1);
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  if (total === Infinity && weights.every((weight) => weight < Infinity)) yield 'the weights are too large to be added up';
}
