/**
 * What a policy behind the Tinker API costs: `npm run bench -- tinker [--json] [--threads N]`. The server is `trainyard tinker` with the
 * base policy, a process of its own on loopback; this process is the client.
 *
 * A thousand samples at once; training batches of 8 MB, sent and trained; meanwhile, how long the event loop of either process was held
 * up, and how much of that it was computing (`stallCpuMs`): the rest is for want of a core. Protobuf alone, in long and in short rows.
 * Then the same conversations and the same step, through Tinker and in this process, in turn: by the clock, and by what all threads of
 * both processes computed. Stalls while nothing runs are reported beside the others.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { Engine, SampleRequest, Trainer } from '../src/core/policy.ts';
import type { Sample } from '../src/core/types.ts';
import { defaultThreads, EmbeddedModel } from '../src/engines/embedded/embedded-model.ts';
import { policyDatum } from '../src/engines/tinker/client/datum.ts';
import { encodePassRequest } from '../src/engines/tinker/wire/protobuf.ts';
import type { PassRequest } from '../src/engines/tinker/wire/tinker-messages.ts';
import { ppo } from '../src/training/losses.ts';
import { median } from './gateway/slices.ts';
import { connect, Served } from './tinker/served.ts';
import { computedMs, longestStall, type Stall } from './tinker/stalls.ts';

const MODEL = fileURLToPath(new URL('../models/base', import.meta.url));
const SAMPLES_AT_ONCE = 1000;
const SAMPLE_ROUNDS = 5;
const BATCH_BYTES = 8e6;
const BATCH_ROUNDS = 3;
const ENCODE_ROUNDS = 40;
const WORK_ROUNDS = 7;
/** A group's rollouts share their prompt. */
const GROUP = 16;
const PROMPT = 160;
const SAMPLED = 32;
/** Rows of 64 tokens: what a row costs beside its numbers weighs more there. */
const SHORT_PROMPT = 32;
const IDLE_MS = 1500;
const ADAM = { learningRate: 1e-5, beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 };
const LOSS = ppo({ clipLow: 0.2, clipHigh: 0.28 });

interface Policy {
  readonly engine: Engine;
  readonly trainer: Trainer;
}

/** Of both processes. */
interface Stalls {
  readonly client: Stall;
  readonly server: Stall;
}

/** Milliseconds of one step: by the clock, and computed in both processes together, which other work on the machine hardly changes. */
interface Step {
  readonly wall: Parts;
  readonly computed: Parts;
}

interface Parts {
  readonly sampling: number;
  readonly training: number;
  readonly publishing: number;
}

export async function run({
  threads = defaultThreads(),
}: {
  readonly threads: number | undefined;
}): Promise<Readonly<Record<string, unknown>>> {
  const load = loadavg()[0];
  const folder = await mkdtemp(join(tmpdir(), 'trainyard-bench-tinker-'));
  try {
    await using embedded = await EmbeddedModel.open({ dir: MODEL, threads });
    await using served = await Served.start(MODEL, join(folder, 'state'), threads);
    await using client = await connect(served.serving, embedded.config);
    const idle = await during(served, () => sleep(IDLE_MS));
    const sampling = await manySamples(client, served);
    const training = await largeBatches(client, served);
    const encodeMBps = encoding(embedded, PROMPT);
    const encodeShortMBps = encoding(embedded, SHORT_PROMPT);
    const overhead = await overheadOf(served, client, { engine: embedded, trainer: embedded });
    const stalls = [...sampling.stalls, ...training.stalls].flatMap(({ client, server }) => [client, server]);
    const result = {
      samplesPerSecond: sampling.perSecond,
      encodeMBps,
      encodeShortMBps,
      stallMs: Math.max(...stalls.map(({ wall }) => wall)),
      stallCpuMs: Math.max(...stalls.map(({ cpu }) => cpu)),
      ...overhead,
      stalls: { idle, sampling: sampling.stalls, training: training.stalls },
      batch: training.batch,
      threads,
      load,
    };
    console.dir(result, { depth: 5 });
    return result;
  } finally {
    await rm(folder, { recursive: true });
  }
}

async function during(served: Served, work: () => Promise<unknown>): Promise<Stalls> {
  longestStall();
  await served.longestStall();
  await work();
  return { client: longestStall(), server: await served.longestStall() };
}

/** The first round warms up. */
async function manySamples(
  { engine }: Policy,
  served: Served,
): Promise<{ readonly perSecond: number; readonly stalls: readonly Stalls[] }> {
  const rates: number[] = [];
  const stalls: Stalls[] = [];
  for (let round = 0; round <= SAMPLE_ROUNDS; round++) {
    const asked = requests(engine, SAMPLES_AT_ONCE, round);
    const start = performance.now();
    const stalled = await during(served, () => Promise.all(asked.map((request) => engine.sample(request))));
    if (round === 0) continue;
    rates.push((1000 * SAMPLES_AT_ONCE) / (performance.now() - start));
    stalls.push(stalled);
  }
  return { perSecond: median(rates), stalls };
}

/** Forward and backward of a batch of 8 MB; the first, of an eighth of that, warms up. */
async function largeBatches(
  { engine, trainer }: Policy,
  served: Served,
): Promise<{ readonly batch: Readonly<Record<string, number>>; readonly stalls: readonly Stalls[] }> {
  const samples = batchOf(engine, BATCH_BYTES, PROMPT);
  await trainer.forwardBackward(samples.slice(0, samples.length / 8), LOSS);
  const stalls: Stalls[] = [];
  const seconds: number[] = [];
  for (let round = 0; round < BATCH_ROUNDS; round++) {
    const start = performance.now();
    stalls.push(await during(served, () => trainer.forwardBackward(samples, LOSS)));
    seconds.push((performance.now() - start) / 1000);
  }
  await trainer.optimStep(ADAM);
  const bytes = encodePassRequest(passOf(samples)).length;
  const tokens = samples.reduce((sum, sample) => sum + sample.tokens.length, 0);
  return { batch: { samples: samples.length, tokens, bytes, seconds: median(seconds) }, stalls };
}

/** Millions of bytes written per second; the median of rounds, since what is written is garbage for the next one. */
function encoding(engine: Engine, prompt: number): number {
  const pass = passOf(batchOf(engine, BATCH_BYTES, prompt));
  const rates = Array.from({ length: ENCODE_ROUNDS }, () => {
    const start = performance.now();
    const { length } = encodePassRequest(pass);
    return length / 1e6 / ((performance.now() - start) / 1000);
  });
  return median(rates.slice(ENCODE_ROUNDS / 4));
}

/** One step as the demo takes it: conversations, a batch of them, gradient, update, publication. Rounds alternate. */
async function overheadOf(served: Served, tinker: Policy, embedded: Policy): Promise<Readonly<Record<string, unknown>>> {
  const steps = new Map<Policy, Step[]>([
    [tinker, []],
    [embedded, []],
  ]);
  for (let round = 0; round <= WORK_ROUNDS; round++) {
    // Who goes first has the colder caches.
    const inTurn = round % 2 === 0 ? [tinker, embedded] : [embedded, tinker];
    for (const policy of inTurn) {
      const step = await oneStep(served, policy, round);
      if (round > 0) steps.get(policy)!.push(step);
    }
  }
  const ratios = (kind: keyof Step): number[] =>
    steps.get(tinker)!.map((step, round) => whole(step[kind]) / whole(steps.get(embedded)![round]![kind]));
  const medians = (kind: keyof Step) => ({
    tinker: partsOf(steps.get(tinker)!, kind),
    embedded: partsOf(steps.get(embedded)!, kind),
  });
  return {
    overheadOverEmbedded: median(ratios('wall')),
    computedOverEmbedded: median(ratios('computed')),
    overheads: ratios('wall'),
    stepMs: medians('wall'),
    stepComputedMs: medians('computed'),
  };
}

function whole({ sampling, training, publishing }: Parts): number {
  return sampling + training + publishing;
}

function partsOf(steps: readonly Step[], kind: keyof Step): Parts {
  const of = (part: keyof Parts): number => median(steps.map((step) => step[kind][part]));
  return { sampling: of('sampling'), training: of('training'), publishing: of('publishing') };
}

async function oneStep(served: Served, { engine, trainer }: Policy, round: number): Promise<Step> {
  const look = async () => ({ computed: computedMs() + (await served.computedMs()), wall: performance.now() });
  const start = await look();
  const rollouts = await Promise.all(
    requests(engine, 8 * GROUP, round).map(async (request) => {
      // Two calls, the second on what the first one said, as of an agent that uses a tool.
      const first = await engine.sample(request);
      const promptIds = Int32Array.of(...request.promptIds, ...first.ids);
      const { ids, logprobs } = await engine.sample({ ...request, promptIds });
      return sampleOf(promptIds, ids, logprobs);
    }),
  );
  const sampled = await look();
  await trainer.forwardBackward(rollouts, LOSS);
  await trainer.optimStep(ADAM);
  const trained = await look();
  await trainer.publish(round + 1);
  const published = await look();
  const between = (kind: keyof Step): Parts => ({
    sampling: sampled[kind] - start[kind],
    training: trained[kind] - sampled[kind],
    publishing: published[kind] - trained[kind],
  });
  return { wall: between('wall'), computed: between('computed') };
}

function requests({ vocabSize }: Engine, count: number, round: number): readonly SampleRequest[] {
  return Array.from({ length: count }, (_, i) => {
    const group = Math.floor(i / GROUP);
    const promptIds = Int32Array.from({ length: PROMPT }, (_p, k) => (k * 7 + group * 31 + round * 101) % vocabSize);
    const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: SAMPLED };
    return { promptIds, sampling, stopIds: [], seed: round * count + i, affinity: `${round}-${group}` };
  });
}

/** As many samples as make about so many bytes of protobuf. */
function batchOf(engine: Engine, bytes: number, prompt: number): readonly Sample[] {
  const made = (count: number, round: number) =>
    requests(engine, count, round).map(({ promptIds, seed }) => madeUp(engine, promptIds.subarray(0, prompt), seed));
  const some = made(8 * GROUP, 0);
  const each = encodePassRequest(passOf(some)).length / some.length;
  const count = Math.ceil(bytes / each / GROUP) * GROUP;
  return made(count, 1);
}

/** A sample of tokens that nobody sampled. */
function madeUp({ vocabSize }: Engine, promptIds: Int32Array, seed: number): Sample {
  const ids = Int32Array.from({ length: SAMPLED }, (_, i) => (seed * 13 + i * 17) % vocabSize);
  return sampleOf(promptIds, ids, new Float32Array(SAMPLED).fill(-6));
}

function sampleOf(promptIds: Int32Array, ids: Int32Array, logprobs: Float32Array): Sample {
  const length = promptIds.length + ids.length;
  const behind = (values: ArrayLike<number>): Float32Array => {
    const array = new Float32Array(length);
    array.set(values, promptIds.length);
    return array;
  };
  return {
    tokens: Int32Array.of(...promptIds, ...ids),
    mask: Uint8Array.from(behind(new Uint8Array(ids.length).fill(1))),
    logprobs: behind(logprobs),
    advantages: behind(Float32Array.from(ids, (_, i) => (i % 2 === 0 ? 1 : -1) / 1000)),
    versions: new Int32Array(length),
    temperature: 1,
    weight: 1,
    rolloutId: 'bench',
    groupId: 'bench',
  };
}

function passOf(samples: readonly Sample[]): PassRequest {
  const lossSettings = { clip_low_threshold: 0.8, clip_high_threshold: 1.28 };
  return {
    modelId: 'bench',
    seqId: 1,
    data: samples.map((sample) => policyDatum(sample, false)),
    loss: 'ppo',
    lossSettings,
    forwardOnly: false,
  };
}
