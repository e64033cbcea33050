/**
 * What running ahead of the trainer is worth: `npm run bench -- async [--json]`. Real `train()` of the base model, whose engine takes as long
 * as a slow tool or a long answer would: for each call a time of its own, most short and a few very long (log-normal, by the call's seed).
 *
 * The same steps with staleness 0 and 2, in turn, with as many places for rollouts in both: what one batch needs. `speedup` is the ratio of
 * the medians. `busy` is the share of the places' time in which a call was running. Those calls wait outside the policy, so its publishing is
 * measured alone: beside eight long answers, with room for one version of the weights and for two.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { defineWorkflow } from '../src/core/define.ts';
import { type Engine, engineWith } from '../src/core/policy.ts';
import { EmbeddedModel } from '../src/engines/embedded/embedded-model.ts';
import { gaussian, randomStream } from '../src/engines/embedded/random.ts';
import { BASE_MODEL } from '../src/settings/settings.ts';
import { train } from '../src/training/train.ts';
import type { Flags } from './main.ts';

const SIZE = { steps: 12, groupsPerStep: 8, group: 4, concurrency: 32, evalEvery: 0 } as const;
const ROUNDS = 3;
const MEDIAN_MS = 50;
const SIGMA = 1;
const TURNS = 2;

/** Rewards look random to the policy, so that they differ within groups to the end. */
const workflow = defineWorkflow(async (ctx) => {
  const messages = [...ctx.prompt];
  let letters = '';
  for (let turn = 0; turn < TURNS; turn++) {
    const { text } = await ctx.model().generate({ messages, maxTokens: 16 });
    letters += text;
    messages.push({ role: 'assistant', content: text }, { role: 'user', content: 'and?' });
  }
  return { reward: ([...letters].reduce((sum, letter) => sum + (letter.codePointAt(0) ?? 0), 0) % 3) / 2 };
});

const tasks = Array.from({ length: 32 }, (_, i) => ({
  id: `t${i}`,
  prompt: [{ role: 'user' as const, content: `Question ${i}?` }],
}));

interface Run {
  readonly seconds: number;
  readonly busy: number;
  readonly staleGroups: number;
  /** How long the trainer waited for its batches. */
  readonly waited: number;
}

async function measure(folder: string, staleness: number, seed: number, threads: number | undefined): Promise<Run> {
  let slept = 0;
  let waited = 0;
  let staleGroups = 0;
  let start = 0;
  let end = 0;
  const slow = (engine: Engine): Engine =>
    engineWith(engine, async (request, signal, onTokens) => {
      const result = await engine.sample(request, signal, onTokens);
      const ms = MEDIAN_MS * Math.exp(SIGMA * gaussian(randomStream(request.seed)));
      // After sampling: the answer is as old as it would be if its tokens had taken that long.
      await sleep(ms, undefined, signal && { signal });
      slept += ms / 1000;
      return result;
    });
  const run = join(folder, `${staleness}-${seed}`);
  const request = { ...SIZE, entry: { workflow }, tasks, run, seed, staleness, ...(threads && { threads }) };
  await train(
    request,
    (event) => {
      if (event.type === 'run-start') start = performance.now();
      if (event.type !== 'step-end') return;
      end = performance.now();
      waited += event.rolloutSeconds;
      staleGroups += event.staleGroups;
    },
    { through: { engine: slow } },
  );
  const seconds = (end - start) / 1000;
  const shown = [seconds, slept / seconds / SIZE.concurrency, waited].map((one) => one.toFixed(2));
  console.log(
    `staleness ${staleness}: ${shown[0]} s, places busy ${shown[1]}, trainer waited ${shown[2]} s, ${staleGroups} stale`,
  );
  return { seconds, busy: slept / seconds / SIZE.concurrency, staleGroups, waited };
}

/** Milliseconds until a version is served while eight answers of 500 tokens are being sampled. */
async function publishing(overlap: boolean, threads: number | undefined): Promise<number> {
  await using model = await EmbeddedModel.open({ dir: BASE_MODEL, threads, overlap });
  const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: 500 };
  const begun = Promise.withResolvers<void>();
  const calls = Array.from({ length: 8 }, (_, seed) =>
    model.sample(
      { promptIds: Int32Array.of(1), sampling, stopIds: [], seed },
      undefined,
      () => void begun.resolve() as undefined,
    ),
  );
  await begun.promise;
  const start = performance.now();
  await model.publish(1);
  const ms = performance.now() - start;
  await Promise.all(calls);
  console.log(`publishing beside eight long answers, room for ${overlap ? 2 : 1}: ${ms.toFixed(1)} ms`);
  return ms;
}

const median = (values: readonly number[]): number => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]!;

export async function run({ threads }: Flags): Promise<Readonly<Record<string, unknown>>> {
  console.log(
    `load ${loadavg()[0]!.toFixed(1)}; ${SIZE.steps} steps of ${SIZE.groupsPerStep} × ${SIZE.group} rollouts, ${TURNS} calls each`,
  );
  const folder = await mkdtemp(join(tmpdir(), 'trainyard-bench-'));
  const runs: Record<'waiting' | 'ahead', Run[]> = { waiting: [], ahead: [] };
  for (let seed = 1; seed <= ROUNDS; seed++) {
    runs.waiting.push(await measure(folder, 0, seed, threads));
    runs.ahead.push(await measure(folder, 2, seed, threads));
  }
  await rm(folder, { recursive: true });
  const publishMs: Record<'waiting' | 'ahead', number[]> = { waiting: [], ahead: [] };
  for (let round = 0; round < ROUNDS; round++) {
    publishMs.waiting.push(await publishing(false, threads));
    publishMs.ahead.push(await publishing(true, threads));
  }
  const of = (which: keyof typeof runs, what: keyof Run): number => median(runs[which].map((one) => one[what]));
  return {
    speedup: of('waiting', 'seconds') / of('ahead', 'seconds'),
    synchronousSeconds: of('waiting', 'seconds'),
    asynchronousSeconds: of('ahead', 'seconds'),
    synchronousBusy: of('waiting', 'busy'),
    asynchronousBusy: of('ahead', 'busy'),
    synchronousWaitSeconds: of('waiting', 'waited'),
    asynchronousWaitSeconds: of('ahead', 'waited'),
    synchronousPublishMs: median(publishMs.waiting),
    asynchronousPublishMs: median(publishMs.ahead),
    staleGroups: runs.ahead.map(({ staleGroups }) => staleGroups),
  };
}
