/** Conformance cases for trainers about gradients, losses and steps; part of the trainer's suite. */
import assert from 'node:assert/strict';
import type { ErrorCode, Loss, LossInput, Sample } from '../../../src/index.ts';
import { crossEntropy, importanceSampling, ppo, withKl } from '../../../src/loop.ts';
import {
  ADAM,
  anonymous,
  atMask,
  batchFor,
  refuses,
  sameLists,
  sameNumbers,
  sampleFor,
  type TrainerCases,
  type TrainerProbe,
} from './conformance.ts';

const CLIP = { clipLow: 0.2, clipHigh: 0.28 };
const FAILED: readonly ErrorCode[] = ['TRAINER_FAILED', 'SAMPLE_REFUSED'];

export const steppingCases: TrainerCases = {
  'lowers the loss that it steps on, and only by stepping': async (probe) => {
    const { engine, trainer, tolerance } = probe;
    const samples = batchFor(engine, 100, 4);
    const scored = await trainer.forward(samples);
    const losses: number[] = [];
    for (let step = 0; step < 4; step++) {
      const { loss, trainedTokens, logprobs } = await trainer.forwardBackward(samples, crossEntropy());
      if (step === 0) {
        assert.equal(trainedTokens, tokensIn(scored));
        sameLists(logprobs, scored, tolerance, 'log-probabilities beside the gradient, of sample');
        sameNumbers([loss], [expectedLoss(samples, scored)], lossRounding(scored, tolerance), 'the loss');
      }
      losses.push(loss);
      await trainer.optimStep(ADAM);
    }
    for (let i = 1; i < losses.length; i++)
      assert.ok(losses[i]! < losses[i - 1]!, `losses of one step after another: ${losses.join(', ')}`);
  },
  'adds up the gradients of several calls': async (probe) => {
    const { engine, trainer } = probe;
    const first = batchFor(engine, 110, 3);
    const second = batchFor(engine, 120, 3);
    const { start, apart, together, onlySecond } = await probe.outcomes({
      apart: async () => {
        await trainer.forwardBackward(first, crossEntropy());
        await probe.step(second);
      },
      together: () => probe.step([...first, ...second]),
      onlySecond: () => probe.step(second),
    });
    probe.same(apart, together, start, 'two calls against one');
    probe.different(apart, onlySecond, start, 'two calls against the second alone');
  },
  'begins each step without the gradient of the last': async (probe) => {
    const first = batchFor(probe.engine, 130, 3);
    const second = batchFor(probe.engine, 140, 3);
    // Betas of 0, so that a step depends only on its own gradient.
    const memoryless = { ...ADAM, beta1: 0, beta2: 0 };
    const alone = () => probe.step(second, crossEntropy(), memoryless);
    const after = async () => {
      await probe.step(first, crossEntropy(), { ...memoryless, learningRate: 0 });
      await alone();
    };
    await probe.sameAfter('a step after another', after, alone);
  },
  'takes one AdamW update by a step, corrected for its first ones': async (probe) => {
    const samples = batchFor(probe.engine, 145, 3);
    const stepWith = (beta1: number, beta2: number) => () => probe.step(samples, crossEntropy(), { ...ADAM, beta1, beta2 });
    // The first update is the learning rate times the gradient's sign, whatever the betas; a second one would depend on them.
    await probe.sameAfter('first steps of different betas', stepWith(0.9, 0.95), stepWith(0, 0));
  },
  'changes nothing by a step at learning rate 0, by scoring or by a gradient alone': async (probe) => {
    const { engine, trainer } = probe;
    const before = await probe.look();
    await trainer.forwardBackward(batchFor(engine, 150, 3), crossEntropy());
    probe.unchanged(await probe.look(), before, 'after forwardBackward');
    await trainer.optimStep({ ...ADAM, learningRate: 0 });
    probe.unchanged(await probe.look(), before, 'after a step at learning rate 0');
  },
  'counts a sample by its weight': async (probe) => {
    const { engine, trainer, tolerance } = probe;
    const [heavy, light] = batchFor(engine, 160, 2) as [Sample, Sample];
    const [scored] = await trainer.forward([heavy]);
    const { loss } = await trainer.forwardBackward([{ ...heavy, weight: 0.25 }], crossEntropy());
    const expected = 0.25 * expectedLoss([heavy], [scored!]);
    sameNumbers([loss], [expected], lossRounding([scored!], tolerance), 'the loss at weight 0.25');
    for (const asNamed of [(loss: Loss) => loss, (loss: Loss) => anonymous(loss)]) {
      const { start, weighted, repeated, plain } = await probe.outcomes({
        weighted: () => probe.step([{ ...heavy, weight: 3 }, light], asNamed(crossEntropy())),
        repeated: () => probe.step([heavy, heavy, heavy, light], asNamed(crossEntropy())),
        plain: () => probe.step([heavy, light], asNamed(crossEntropy())),
      });
      probe.same(weighted, repeated, start, 'weight 3 against three of weight 1');
      probe.different(weighted, plain, start, 'weight 3 against weight 1');
    }
  },
  'tells the norm of the gradient before clipping, where it tells it': async ({ engine, trainer }) => {
    const samples = batchFor(engine, 170, 3);
    const normOf = async (weight: number, maxGradNorm: number) => {
      await trainer.forwardBackward(
        samples.map((sample) => ({ ...sample, weight })),
        crossEntropy(),
      );
      return (await trainer.optimStep({ ...ADAM, learningRate: 0, maxGradNorm })).gradNorm;
    };
    const plain = await normOf(1, 0);
    if (plain === undefined) return;
    assert.ok(plain > 0 && Number.isFinite(plain), `the norm is ${plain}`);
    sameNumbers([(await normOf(1, plain / 10))!], [plain], 0.01 * plain, 'the norm where it is clipped');
    sameNumbers([(await normOf(2, 0))!], [2 * plain], 0.02 * plain, 'the norm at twice the weight');
  },

  'takes the same step by a loss that it may know by name and by the same function without a name': async (probe) => {
    const { engine, trainer } = probe;
    const samples = await offPolicy(probe, batchFor(engine, 200, 4));
    for (const loss of [crossEntropy(), importanceSampling(), ppo(CLIP), withKl(ppo(CLIP), 0.5)]) {
      const losses: number[] = [];
      const by = (one: Loss) => async () => {
        const result = await trainer.forwardBackward(samples, one);
        losses.push(result.loss);
        await trainer.optimStep(ADAM);
      };
      const { start, named, unnamed } = await probe.outcomes({ named: by(loss), unnamed: by(anonymous(loss)) });
      const what = `${loss.name} ${JSON.stringify(loss.settings)}`;
      probe.same(named, unnamed, start, what);
      sameNumbers([losses[0]!], [losses[1]!], 1e-3 * Math.max(1, Math.abs(losses[1]!)), `the value of ${what}`);
    }
  },
  'takes other steps by other losses of one name': async (probe) => {
    const samples = await offPolicy(probe, batchFor(probe.engine, 210, 4));
    const { start, plain, pulled } = await probe.outcomes({
      plain: () => probe.step(samples, ppo(CLIP)),
      pulled: () => probe.step(samples, withKl(ppo(CLIP), 5)),
    });
    probe.different(pulled, plain, start, 'a penalty against none');
    const bare = samples.map(({ reference: _, ...sample }) => sample);
    await refuses(FAILED, probe.trainer.forwardBackward(bare, withKl(ppo(CLIP), 5)), 'a penalty without a reference');
  },
  'gives a loss the log-probabilities now and as sampled, advantages and reference of the masked tokens': async (probe) => {
    const { engine, trainer, tolerance } = probe;
    const samples = await offPolicy(probe, batchFor(engine, 220, 3));
    const scored = await trainer.forward(samples);
    const seen: LossInput[] = [];
    const { metrics } = await trainer.forwardBackward(
      samples,
      anonymous(ppo(CLIP), (input) => seen.push(input)),
    );
    for (const [i, sample] of samples.entries()) {
      const at = (values: Float32Array): Float32Array => atMask(sample, values);
      const { logprobs, advantages, reference } = sample;
      const input = seen.find(({ sampled }) => sampled.join() === at(logprobs).join());
      assert.ok(input, `the loss was not called with what was sampled of sample ${i}`);
      sameNumbers(input.logprobs, scored[i]!, tolerance, `log-probabilities of sample ${i}`);
      sameNumbers(input.advantages, at(advantages), 0, `advantages of sample ${i}`);
      assert.ok(input.reference, `the loss got no reference of sample ${i}`);
      sameNumbers(input.reference, at(reference!), 0, `reference of sample ${i}`);
    }
    assert.equal(metrics['tokens'], tokensIn(scored), 'metrics are summed over samples');
  },
  'steps on the good gradient alone after a loss that failed': async (probe) => {
    const { engine, trainer } = probe;
    // Enough samples that part of the work may be done when the last one fails.
    const bad = batchFor(engine, 1000, 256);
    const good = batchFor(engine, 240, 3);
    let calls = 0;
    const throwing = anonymous(crossEntropy(), () => {
      calls++;
      if (calls === bad.length) throw new Error('on purpose');
    });
    const notANumber: Loss = {
      ...anonymous(crossEntropy()),
      evaluate: ({ logprobs }) => ({ loss: 1, gradient: new Float32Array(logprobs.length).fill(Number.NaN) }),
    };
    const tooShort: Loss = { ...notANumber, evaluate: () => ({ loss: 1, gradient: new Float32Array(1) }) };
    const afterFailures = async () => {
      for (const loss of [throwing, notANumber, tooShort])
        await refuses(FAILED, trainer.forwardBackward(bad, loss), 'a loss that fails');
      await probe.step(good);
    };
    await probe.sameAfter('a step after losses that failed', afterFailures, () => probe.step(good));
  },

  'does what it is told in the order of the calls, awaited or not': async (probe) => {
    const { engine, trainer } = probe;
    const first = batchFor(engine, 250, 3);
    const second = batchFor(engine, 260, 3);
    const between: (readonly number[])[] = [];
    const { start, awaited, inARow } = await probe.outcomes({
      awaited: async () => {
        await probe.step(first);
        between.push(await probe.look());
        await probe.step(second, anonymous(crossEntropy()));
      },
      inARow: async () => {
        await Promise.all([
          trainer.forwardBackward(first, crossEntropy()),
          trainer.optimStep(ADAM),
          probe.look().then((found) => between.push(found)),
          trainer.forwardBackward(second, anonymous(crossEntropy())),
          trainer.optimStep(ADAM),
        ]);
      },
    });
    probe.same(between[1]!, between[0]!, start, 'the first step');
    probe.same(inARow, awaited, start, 'both steps');
    probe.different(inARow, between[1]!, start, 'both steps against the first');
  },
  'keeps a frozen reference where it was': async (probe) => {
    const before = await probe.look();
    await probe.trainer.freezeReference();
    await probe.step(batchFor(probe.engine, 270, 3));
    const now = await probe.look();
    probe.unchanged(await probe.look('reference'), before, 'the reference after a step');
    probe.moved(now, before);
    await probe.trainer.freezeReference();
    probe.unchanged(await probe.look('reference'), now, 'a reference that was frozen again');
    probe.unchanged(await probe.look(), now, 'the current weights beside it');
  },
};

/** As if sampled by another policy: ratios leave the clip interval on both sides, with advantages of both signs. */
async function offPolicy({ engine, trainer }: TrainerProbe, samples: readonly Sample[]): Promise<readonly Sample[]> {
  const scored = await trainer.forward(samples);
  return samples.map((sample, k) => {
    let next = 0;
    const moved = Float32Array.from(sample.mask, (m, i) => (m === 1 ? scored[k]![next++]! + [-0.6, 0, 0.6][i % 3]! : 0));
    const advantages = sample.advantages.map((advantage, i) => (i % 2 === 0 ? advantage : -advantage));
    const reference = sampleFor(engine, sample.tokens.length, 500 + k).logprobs;
    return { ...sample, logprobs: moved, advantages, reference };
  });
}

function expectedLoss(samples: readonly Sample[], scored: readonly Float32Array[]): number {
  const each = samples.map((sample, i) =>
    atMask(sample, sample.advantages).reduce((sum, advantage, k) => sum - advantage * scored[i]![k]!, 0),
  );
  return each.reduce((sum, loss) => sum + loss, 0);
}

/** An upper bound on the summed rounding errors of log-probabilities. */
function lossRounding(scored: readonly Float32Array[], tolerance: number): number {
  return tokensIn(scored) * Math.max(tolerance, 1e-5) * 2;
}

const tokensIn = (scored: readonly Float32Array[]): number => scored.reduce((sum, { length }) => sum + length, 0);
