/**
 * Our advantages, losses and their gradients against other people's code, on random numbers: verl's, TRL's and AReaL's functions as they
 * are on PyPI, and torch's autograd where none of them has a function to call. losses_check.py calls them and says how far apart we are.
 */
import { spawnSync } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Loss } from '../../src/core/policy.ts';
import type { Trajectory } from '../../src/core/types.ts';
import { ALGORITHMS } from '../../src/settings/settings.ts';
import { makeBatch } from '../../src/training/batch.ts';
import { makePairs, preferencesOf } from '../../src/training/dpo.ts';
import { cispo, crossEntropy, decoupledPpo, dro, gspo, importanceSampling, ppo } from '../../src/training/losses.ts';
import { overlongPenalty } from '../../src/training/overlong.ts';
import { withEntropy, withKl } from '../../src/training/penalties.ts';
import { gradedRollout, trainedTurn } from '../fixtures/trained-rows.ts';
import { runProgram } from './child.ts';
import { cache } from './python-environment.ts';
import type { Report } from './report.ts';

const SEEDS = [1, 2, 3, 4, 5];
const TOLERANCE = 1e-5;
/** Its functions need nothing of what the package requires, which is not to be had beside this torch. */
const AREAL = 'areal==1.0.4';

const CLIP = { clipLow: 0.2, clipHigh: 0.28 };
const nothing = crossEntropy();
/** By the name of the row in losses_check.py. */
const LOSSES: Readonly<Record<string, Loss>> = {
  ppo: ppo(CLIP),
  'ppo, dual clip': ppo({ ...CLIP, dualClip: 3 }),
  importance_sampling: importanceSampling(),
  gspo: gspo(CLIP),
  cispo: cispo(CLIP),
  'cispo, upper bound alone': cispo({ clipLow: 1, clipHigh: 1 }),
  dro: dro({ beta: 0.3 }),
  'decoupled_ppo, token truncate': decoupledPpo(CLIP),
  'decoupled_ppo, token truncate, floor, dual clip': decoupledPpo({ ...CLIP, dualClip: 1.5, isCap: 2, isFloor: 0.5 }),
  'decoupled_ppo, token mask': decoupledPpo({ ...CLIP, isAction: 'mask', isCap: 2, isFloor: 0.5 }),
  'decoupled_ppo, sequence truncate': decoupledPpo({ ...CLIP, isLevel: 'sequence', isCap: 1.1 }),
  'decoupled_ppo, sequence mask': decoupledPpo({ ...CLIP, isLevel: 'sequence', isAction: 'mask', isCap: 1.1 }),
  'kl k1': withKl(nothing, 0.7, 'k1'),
  'kl k2': withKl(nothing, 0.7, 'k2'),
  'kl k3': withKl(nothing, 0.7, 'k3'),
  'ppo with kl k3': withKl(ppo(CLIP), 0.1),
};
/** Of these there is no proximal policy: it is the one in training. */
const WITHOUT_PROXIMAL = 'decoupled_ppo, no proximal policy';

export async function checkLosses(report: Report, python: string): Promise<void> {
  const { status, stderr } = spawnSync(python, ['-m', 'pip', 'install', '--quiet', '--no-deps', AREAL], { encoding: 'utf8' });
  if (status !== 0)
    return report.skip('losses and advantages', `pip could not install ${AREAL}: ${stderr.trim().split('\n').at(-1)}`);
  const [source, target] = ['losses.json', 'losses-compared.json'].map((name) => join(cache, name)) as [string, string];
  await writeFile(source, JSON.stringify(SEEDS.map(caseOf)));
  const began = performance.now();
  const args = [join(import.meta.dirname, 'losses_check.py'), source, target];
  await runProgram({ command: python, args, limitMs: 300_000, env: { VERL_USE_EXTERNAL_PLUGINS: 'none' } });
  const rows = JSON.parse(await readFile(target, 'utf8')) as readonly {
    readonly name: string;
    readonly theirs: string;
    readonly difference: number;
    readonly numbers: number;
    readonly largest: number;
  }[];
  const seconds = (performance.now() - began) / 1000 / rows.length;
  for (const { name, theirs, difference, numbers, largest } of rows) {
    // Zeros on both sides would agree about nothing.
    const passed = difference <= TOLERANCE && numbers > 0 && largest > 0.01;
    const measured = `${theirs}: ${numbers} numbers of up to ${largest.toPrecision(3)}, largest difference ${difference.toExponential(1)}`;
    report.tell({ name, passed, measured, seconds });
  }
}

/** Everything of one seed: inputs, and what we make of them. */
function caseOf(seed: number) {
  const random = randomOf(seed);
  const between = (low: number, high: number): number => low + (high - low) * random();
  const rows = [1, 2, 5, 9, 17].map((length) => {
    const list = (valueAt: () => number): Float32Array => Float32Array.from({ length }, valueAt);
    const logprobs = list(() => between(-4, -0.01));
    // Far beyond every clip, on both sides.
    const near = (by: number): Float32Array => logprobs.map((lp) => Math.min(lp + between(-by, by), -0.001));
    return { logprobs, sampled: near(2), proximal: near(1), reference: near(1), advantages: list(() => between(-2, 2)) };
  });
  const told = (loss: Loss, inputs: readonly Parameters<Loss['evaluate']>[0][]) => {
    const outputs = inputs.map((input) => loss.evaluate(input));
    return { loss: outputs.reduce((sum, one) => sum + one.loss, 0), gradients: outputs.map(({ gradient }) => [...gradient]) };
  };
  const still = rows.map(({ proximal: _, ...row }) => row);
  const silent = rows.map((row) => ({ ...row, advantages: row.advantages.map(() => 0) }));
  const losses = Object.entries(LOSSES).map(([name, loss]) => [name, told(loss, name.startsWith('kl ') ? silent : rows)]);
  return {
    rows: rows.map((row) => Object.fromEntries(Object.entries(row).map(([name, values]) => [name, [...values]]))),
    losses: { ...Object.fromEntries(losses), [WITHOUT_PROXIMAL]: told(LOSSES['decoupled_ppo, token truncate']!, still) },
    ...{ advantages: advantagesCase(random), dpo: dpoCase(random), entropy: entropyCase(random) },
    overlong: [10, 64, 65, 80, 100].map((length) => ({
      length,
      penalty: overlongPenalty(length, { limit: 100, buffer: 36, factor: 0.7 }),
    })),
  };
}

/** Groups of several sizes, interleaved; each rollout one sample. */
function advantagesCase(random: () => number) {
  const rollouts = Array.from({ length: 14 }, (_, i) => ({
    id: `r${String(i).padStart(2, '0')}`,
    group: i < 3 ? 'a' : i % 3 === 0 ? 'b' : 'c',
    reward: Math.fround(4 * random() - 1),
    length: 1 + Math.floor(9 * random()),
  }));
  const trajectories = rollouts.map(({ id, group, reward, length }): Trajectory => {
    const sampledIds = Int32Array.from({ length }, () => 3);
    return gradedRollout(id, { value: reward }, [trainedTurn(0, { sampledIds })], group);
  });
  const by = ALGORITHMS.map((algorithm) => {
    const { samples } = makeBatch(trajectories, algorithm, 100);
    const found = new Map(samples.map(({ rolloutId, advantages }) => [rolloutId, advantages.at(-1)!]));
    return [algorithm, rollouts.map(({ id }) => found.get(id))];
  });
  return { rollouts, ours: Object.fromEntries(by) };
}

/** Three groups, whose best and worst rollouts have two samples each: two conversations of their own. */
function dpoCase(random: () => number) {
  const trajectories = ['a', 'b', 'c'].flatMap((group) =>
    [0.2, 1, 0, 0.5].map((value, i) => {
      const turns = [0, 1].map((index) => {
        const sampledIds = Int32Array.from({ length: 2 + Math.floor(5 * random()) }, () => 3);
        return trainedTurn(index, { sampledIds, promptIds: Int32Array.of(index + 1, 2), thread: `t${index}` });
      });
      return gradedRollout(`${group}${i}`, { value }, turns, group);
    }),
  );
  const batch = makePairs(trajectories);
  const lengths = batch.samples.map(({ mask }) => mask.reduce((sum, one) => sum + one, 0));
  const lists = () => lengths.map((length) => Float32Array.from({ length }, () => -2 * random() - 0.01));
  const [current, reference] = [lists(), lists()];
  const { samples, loss } = preferencesOf(batch, current, reference, 0.3);
  const { gradients } = {
    gradients: samples.map((sample) => {
      const at = sample.mask.indexOf(1);
      return Array.from(sample.advantages.subarray(at), (advantage) => -advantage * sample.weight);
    }),
  };
  const of = batch.samples.map(({ groupId, rolloutId }) => ({ groupId, isPreferred: rolloutId.endsWith('1') }));
  return { beta: 0.3, of, current: current.map((one) => [...one]), reference: reference.map((one) => [...one]), loss, gradients };
}

/** The derivative that each token of a small vocabulary would get, had it been sampled: by the policy, and by another one. */
function entropyCase(random: () => number) {
  const logits = Array.from({ length: 7 }, () => 3 * random());
  const others = logits.map((logit) => logit + random() - 0.5);
  const logSoftmax = (all: readonly number[]): number[] => {
    const sum = Math.log(all.reduce((total, one) => total + Math.exp(one), 0));
    return all.map((one) => one - sum);
  };
  const [policy, sampler] = [logSoftmax(logits), logSoftmax(others)];
  const derivatives = (sampled: readonly number[]): number[] => {
    const inputs = { logprobs: Float32Array.from(policy), sampled: Float32Array.from(sampled) };
    const none = { advantages: new Float32Array(policy.length), reference: undefined };
    return [...withEntropy(nothing, 0.4).evaluate({ ...inputs, ...none }).gradient];
  };
  return { logits, others, coefficient: 0.4, onPolicy: derivatives(policy), offPolicy: derivatives(sampler) };
}

/** mulberry32. */
function randomOf(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
