/**
 * Training through the Tinker server of this repository, compared with the embedded model trained directly: to the byte, since both
 * compute the same. Chunks are added up in another order than one batch, so there equality is up to rounding.
 */
import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { AdamSettings, Loss, Trainer } from '../../src/core/policy.ts';
import { EmbeddedModel } from '../../src/engines/embedded/embedded-model.ts';
import { cispo, crossEntropy, dro, importanceSampling, ppo } from '../../src/training/losses.ts';
import { withKl } from '../../src/training/penalties.ts';
import { mixedSamples, REGULAR, randomSample, relativeError } from '../fixtures/nn/models.ts';
import { type Fault, type ProxiedReply, startFaultProxy } from '../fixtures/tinker/fault-proxy.ts';
import { type Client, connect, scratch, serve, useServer } from '../fixtures/tinker/server.ts';

const ADAM: AdamSettings = { learningRate: 0.01, beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0.1, maxGradNorm: 0.5 };
const clip = { clipLow: 0.2, clipHigh: 0.28 };
const LOSSES: Loss[] = [crossEntropy(), importanceSampling(), ppo(clip), cispo(clip), dro({ beta: 0.1 }), withKl(ppo(clip), 0.1)];

const samples = mixedSamples(REGULAR).map((sample) => ({ ...sample, temperature: 1 }));
const batchOf = (step: number) => [randomSample(REGULAR, 9, 100 + step), randomSample(REGULAR, 23, 200 + step, { prompt: 5 })];

const home = useServer();

let folders = 0;
async function newFolder(): Promise<string> {
  const dir = join(home.dir, String(folders++));
  await mkdir(dir);
  return dir;
}

/** The bytes of the weights in training, wherever `save` puts them. */
async function weightsOf(trainer: Trainer, state = home.state): Promise<Buffer> {
  const dir = await newFolder();
  await trainer.save(dir);
  const label = await readFile(join(dir, 'tinker.json'), 'utf8').catch(() => undefined);
  const path = label === undefined ? dir : join(state, (JSON.parse(label) as { path: string }).path.replace('tinker://', ''));
  return readFile(join(path, 'model.safetensors'));
}

function floats(file: Buffer): Float32Array {
  const header = Number(file.readBigUInt64LE(0));
  return new Float32Array(Uint8Array.from(file.subarray(8 + header)).buffer);
}

async function directly(train: (trainer: Trainer) => Promise<unknown>, model = home.model): Promise<Buffer> {
  await using embedded = await EmbeddedModel.open({ dir: model, threads: 1 });
  await train(embedded);
  return await weightsOf(embedded);
}

async function throughServer(train: (client: Client) => Promise<unknown>, url = home.url, state = home.state): Promise<Buffer> {
  await using client = await connect(url, REGULAR, 20_000);
  await train(client);
  return await weightsOf(client.trainer, state);
}

async function twoSteps(trainer: Trainer, loss: Loss): Promise<void> {
  for (let step = 0; step < 2; step++) {
    await trainer.forwardBackward(samples, loss);
    await trainer.optimStep(ADAM);
  }
}

/** Nothing is awaited until the end. */
async function pipelined(trainer: Trainer, steps: number): Promise<void> {
  const results: Promise<unknown>[] = [];
  for (let step = 0; step < steps; step++) {
    results.push(trainer.forwardBackward(batchOf(step), importanceSampling()), trainer.optimStep(ADAM));
  }
  await Promise.all(results);
}

describe('a step through the server', () => {
  it.each(LOSSES)('with $name $settings has the bytes of one without it', async (loss) => {
    const expected = await directly((trainer) => twoSteps(trainer, loss));
    const found = await throughServer(({ trainer }) => twoSteps(trainer, loss));
    expect(found.equals(expected)).toBe(true);
  });

  it('reports what the embedded model reports', async () => {
    await using client = await connect(home.url, REGULAR);
    await using embedded = await EmbeddedModel.open({ dir: home.model, threads: 1 });
    for (const loss of LOSSES) {
      const [found, expected] = await Promise.all(
        [client.trainer, embedded].map((trainer) => trainer.forwardBackward(samples, loss)),
      );
      expect(found).toEqual(expected);
    }
    const [found, expected] = [await client.trainer.optimStep(ADAM), await embedded.optimStep(ADAM)];
    expect(found.gradNorm).toBeCloseTo(expected.gradNorm, 4);
  });

  it('is taken in the order of the calls when nothing is awaited between them', async () => {
    const expected = await directly((trainer) => pipelined(trainer, 4));
    const found = await throughServer(({ trainer }) => pipelined(trainer, 4));
    expect(found.equals(expected)).toBe(true);
  });
});

/** A server that takes one datum at a time. */
function oneAtATime(verb: string, reply: ProxiedReply): ProxiedReply {
  if (verb !== 'client/config') return reply;
  const config = JSON.parse(reply.body.toString()) as object;
  return { ...reply, body: Buffer.from(JSON.stringify({ ...config, fwdbwd_max_chunk_len: 1 })) };
}

describe('chunks', () => {
  it('make the step of one batch, up to rounding, and the same results in order', async () => {
    await using proxy = await startFaultProxy({ target: home.url, fault: () => 'none', rewrite: oneAtATime });
    const results = new Map<string, unknown>();
    const train = async (trainer: Trainer, name: string) => {
      results.set(name, await trainer.forwardBackward(samples, ppo(clip)));
      await trainer.optimStep(ADAM);
    };
    const whole = await throughServer(({ trainer }) => train(trainer, 'whole'));
    const cut = await throughServer(({ trainer }) => train(trainer, 'cut'), proxy.url);
    expect(results.get('cut')).toEqual(results.get('whole'));
    expect(relativeError(floats(cut), floats(whole))).toBeLessThan(1e-5);
  });
});

describe('a bad line', () => {
  const faults: Fault[] = ['lose', 'refuse', 'twice', 'delay', 'busy', 'forget'];

  /** Every third exchange or so goes wrong, never more than twice in a row. */
  function chance(seed: number): (verb: string, count: number) => Fault {
    let state = seed;
    let row = 0;
    return (verb) => {
      state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
      const roll = state / 2 ** 32;
      const fault = roll < 0.35 && row < 2 ? faults[Math.floor((roll / 0.35) * faults.length)]! : 'none';
      row = fault === 'none' ? 0 : row + 1;
      return fault === 'forget' && verb !== 'retrieve_future' ? 'lose' : fault;
    };
  }

  it.each([1, 2, 3, 4, 5, 6])('takes each step once, whatever gets lost or comes twice (seed %i)', async (seed) => {
    const expected = await directly((trainer) => pipelined(trainer, 4));
    await using proxy = await startFaultProxy({ target: home.url, fault: chance(seed) });
    const found = await throughServer(({ trainer }) => pipelined(trainer, 4), proxy.url);
    expect(proxy.faults.length).toBeGreaterThan(3);
    expect(found.equals(expected)).toBe(true);
  });
});

describe('a server that is restarted', () => {
  it('has lost the model, and the run goes on from what was saved, to the same bytes', async () => {
    const own = await scratch();
    const stepOf = async (trainer: Trainer, step: number) => {
      const gradient = trainer.forwardBackward(batchOf(step), importanceSampling());
      await Promise.all([gradient, trainer.optimStep(ADAM)]);
    };
    const expected = await directly((trainer) => pipelined(trainer, 2));
    const first = await serve(own);
    const { url } = first;
    await using client = await connect(url, REGULAR, 20_000);
    const { trainer, connection } = client;
    const saved = await newFolder();
    await trainer.freezeReference();
    const reference = await trainer.forward(samples, 'reference');
    await stepOf(trainer, 0);
    await trainer.save(saved);
    await trainer.forwardBackward(batchOf(7), importanceSampling());
    const session = connection.sessionId;
    await first.close();
    const lost = Promise.allSettled([trainer.optimStep(ADAM), trainer.forward(samples)]);
    const second = await serve(own, {}, undefined, Number(new URL(url).port));
    expect(await lost).toMatchObject([{ reason: { code: 'POLICY_LOST' } }, { reason: { code: 'POLICY_LOST' } }]);
    await expect(trainer.forward(samples)).rejects.toMatchObject({ code: 'POLICY_LOST' });
    await trainer.load(saved);
    expect(connection.sessionId).not.toBe(session);
    expect(await trainer.forward(samples, 'reference')).toEqual(reference);
    await stepOf(trainer, 1);
    expect((await weightsOf(trainer, own.state)).equals(expected)).toBe(true);
    await second.close();
    await own.remove();
  });
});
