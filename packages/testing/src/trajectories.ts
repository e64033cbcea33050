/**
 * Random but valid trajectories and manifests, reproducible from a seed on every machine, and a scripted engine. They are awkward rather
 * than typical: several threads, empty prompts, non-ASCII text, log-probabilities at the edges of float32. They are well-formed records,
 * not plausible conversations.
 */
import {
  type BatchManifest,
  type Engine,
  type Grade,
  type Json,
  type LimitName,
  type Message,
  type Outcome,
  type SampleRequest,
  type SampleResult,
  TrainyardError,
  type Trajectory,
  type Turn,
} from '../../../src/index.ts';

/** Every limit that can cut a rollout. */
export const LIMIT_NAMES = Object.keys({
  turns: true,
  tokens: true,
  context: true,
  bytes: true,
  deadline: true,
} satisfies Record<LimitName, true>) as readonly LimitName[];

/** Depends only on its arguments. Unless overridden, the rollout id is unique to the seed. */
export function randomTrajectory(seed: number, overrides: Partial<Trajectory> = {}): Trajectory {
  const random = randomOf(seed);
  const startedAt = 1_700_000_000_000 + random.below(1_000_000);
  const turns = Array.from({ length: random.below(4) }, (_, index) => randomTurn(random, index, startedAt));
  const output = random.pick<Json | undefined>([undefined, null, 'done', 0.1, { answer: [1, { nested: 'é' }], empty: {} }]);
  return {
    rolloutId: `rollout-${seed}`,
    groupId: `group-${random.below(3)}`,
    taskId: `task-${random.below(3)}`,
    purpose: random.pick(['train', 'eval'] as const),
    outcome: randomOutcome(random),
    grade: randomGrade(random),
    turns,
    ...(output === undefined ? {} : { output }),
    ...random.pick([{}, WORDS_OF_ITS_OWN]),
    startedAt,
    endedAt: startedAt + random.below(60_000),
    ...overrides,
  };
}

const WORDS_OF_ITS_OWN = {
  metadata: { path: ['a', 'é'], nothing: null },
  metrics: { tries: 2, share: -0.5 },
  logs: [
    { at: 1_700_000_000_000, text: 'tried "x"\u0000' },
    { at: 1_700_000_000_001, text: '\u001b[31mred', from: 'workflow' },
  ],
} as const satisfies Partial<Trajectory>;

/** The first step makes version 1. */
export function manifestOf(step: number, rolloutIds: readonly string[], overrides: Partial<BatchManifest> = {}): BatchManifest {
  return {
    step,
    policyVersion: step,
    rolloutIds,
    checkpoint: `checkpoints/${step}`,
    groups: { next: 8 * step + 1, pending: [] },
    metrics: { loss: -0.25 * step, rollouts: rolloutIds.length },
    createdAt: 1_700_000_000_000 + step,
    ...overrides,
  };
}

/** -0, the smallest subnormal, the largest finite value and -Infinity: an engine may report all of them. */
const EDGE_LOGPROBS = [-0, -1.401298464324817e-45, -3.4028234663852886e38, Number.NEGATIVE_INFINITY] as const;

const TEXTS: readonly string[] = [
  '',
  'plain words',
  'quotes " and \\ and \u0000',
  'naïve 漢字 🙂',
  'a lone \ud800 surrogate',
  'x'.repeat(5_000),
];

function randomTurn(random: Random, index: number, startedAt: number): Turn {
  const sampledIds = randomIds(random, 1 + random.below(40));
  const logprobs = Float32Array.from(sampledIds, () =>
    random.below(8) === 0 ? random.pick(EDGE_LOGPROBS) : -10 * random.unit(),
  );
  const effective = { temperature: random.unit(), topP: 1, topK: 0, maxTokens: 64 };
  return {
    index,
    thread: random.pick(['main', 'critic']),
    role: random.pick(['policy', 'judge']),
    trainable: random.below(2) === 0,
    promptIds: randomIds(random, random.below(60)),
    sampledIds,
    logprobs,
    policyVersion: random.below(10),
    stopReason: random.pick(['stop', 'length'] as const),
    sampling: { requested: random.pick([{}, { temperature: 0.5 }, effective]), effective, seed: random.below(2 ** 24) },
    request: { messages: [randomMessage(random, 'user')], tools: random.pick([[], [SEARCH_TOOL]]) },
    response: randomMessage(random, 'assistant'),
    startedAt: startedAt + index,
    endedAt: startedAt + index + random.unit(),
  };
}

const SEARCH_TOOL = {
  type: 'function',
  function: { name: 'search', description: 'Looks things up.', parameters: { type: 'object', properties: {} } },
} as const;

/** Any 32-bit value, because a store does not check ids against a vocabulary. */
function randomIds(random: Random, length: number): Int32Array {
  return Int32Array.from({ length }, () => (random.below(2 ** 16) << 16) | random.below(2 ** 16));
}

function randomMessage(random: Random, role: 'user' | 'assistant'): Message {
  const content = random.pick(TEXTS);
  if (role === 'user' || random.below(3) > 0) return { role, content };
  return {
    role,
    content: null,
    tool_calls: [{ id: 'call-1', type: 'function', function: { name: 'search', arguments: '{ "q" : 1' } }],
  };
}

function randomOutcome(random: Random): Outcome {
  return random.pick<Outcome>([
    { kind: 'completed' },
    { kind: 'truncated', limit: random.pick(LIMIT_NAMES) },
    { kind: 'rejected', reason: 'not worth training' },
    { kind: 'failed', code: 'WORKFLOW_FAILED', message: 'it threw' },
  ]);
}

function randomGrade(random: Random): Grade {
  return random.pick<Grade>([
    { kind: 'graded', reward: { value: random.unit() } },
    { kind: 'graded', reward: { value: 1, parts: { format: 0.5, answer: -0.5 } } },
    {
      kind: 'graded',
      reward: { value: 1, success: false, byTurn: { 0: 1 }, byThread: { é: -1 }, byRole: {}, source: 'workflow' },
    },
    { kind: 'graded', reward: { value: 1, byTurn: { 0: 0.5 }, credit: { turnDiscount: 0.5, per: 'turn' } } },
    { kind: 'ungraded', why: 'the rollout failed' },
    { kind: 'failed', code: 'GRADER_TIMEOUT', message: 'no answer in 10 s' },
  ]);
}

function randomOf(seed: number) {
  let drawn = 0;
  /** In [0, 1), with 24 bits: exact in float32. */
  const unit = (): number => (scrambled(seed, drawn++) >>> 7) / 2 ** 24;
  /** An integer in [0, `bound`); `bound` is at most 2^24. */
  const below = (bound: number): number => Math.floor(unit() * bound);
  return { unit, below, pick: <T>(choices: readonly T[]): T => choices[below(choices.length)]! };
}
type Random = ReturnType<typeof randomOf>;

/** A pseudo-random integer of 31 bits. */
export function scrambled(seed: number, i: number): number {
  let x = (Math.imul(seed, 0x9e3779b1) ^ Math.imul(i + 1, 0x85ebca6b)) | 0;
  for (let round = 0; round < 2; round++) x = Math.imul(x ^ (x >>> 15), 0x2c1b3c6d);
  return (x ^ (x >>> 16)) >>> 1;
}

// Test engine that returns what a script tells it. It derives log-probabilities from the ids, so that a test can tell whether each one
// stayed with its token.

export interface ScriptedEngine extends Engine {
  /** In order of arrival. */
  readonly requests: readonly SampleRequest[];
  policyVersion: number;
}

export interface Script {
  readonly vocabSize: number;
  readonly contextLength: number;
  /** Returns the ids to "sample", whole or in parts; ids past maxTokens are cut off. If it waits, it should observe the signal. */
  reply(request: SampleRequest, call: number, signal: AbortSignal | undefined): Reply | Promise<Reply>;
}

type Reply = readonly number[] | AsyncIterable<readonly number[]>;

export function scriptedLogprob(id: number): number {
  return Math.fround(-(id + 1) / 1000);
}

export function scriptedEngine(script: Script): ScriptedEngine {
  const requests: SampleRequest[] = [];
  return {
    vocabSize: script.vocabSize,
    contextLength: script.contextLength,
    policyVersion: 0,
    requests,
    async sample(request, signal, onTokens): Promise<SampleResult> {
      goOn(signal);
      const room = script.contextLength - request.promptIds.length;
      if (room < 1) {
        const found = `the prompt has ${request.promptIds.length} tokens, the context ${script.contextLength}`;
        throw new TrainyardError('CONTEXT_OVERFLOW', found);
      }
      const { policyVersion } = this;
      const call = requests.push(request) - 1;
      const most = Math.min(room, request.sampling.maxTokens);
      const reply = await script.reply(request, call, signal);
      const sampled: number[] = [];
      let ended = false;
      for await (const part of Symbol.asyncIterator in reply ? reply : [reply]) {
        goOn(signal);
        const stop = part.findIndex((id) => request.stopIds.includes(id));
        const kept = Int32Array.from(part.slice(0, Math.min(most - sampled.length, stop === -1 ? part.length : stop + 1)));
        ended = stop !== -1 && kept.length === stop + 1;
        for (const id of kept) sampled.push(id);
        const enough = kept.length > 0 ? onTokens?.(kept, Float32Array.from(kept, scriptedLogprob)) : undefined;
        if (enough !== undefined) {
          sampled.length -= kept.length - enough.keep;
          ended = true;
        }
        if (ended || sampled.length === most) break;
      }
      goOn(signal);
      const ids = Int32Array.from(sampled);
      return { ids, logprobs: Float32Array.from(ids, scriptedLogprob), stopReason: ended ? 'stop' : 'length', policyVersion };
    },
  };
}

function goOn(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw new TrainyardError('CANCELLED', 'the sample call was cancelled', { cause: signal.reason });
}
