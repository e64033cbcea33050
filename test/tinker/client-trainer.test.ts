/**
 * The Tinker trainer against a server that plays a script: servers of another kind than ours, and servers that fail or lie.
 */
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeAll, describe, expect } from 'vitest';
import type { AdamSettings } from '../../src/core/policy.ts';
import type { Sample } from '../../src/core/types.ts';
import { TinkerTrainer } from '../../src/engines/tinker/client/tinker-trainer.ts';
import { decodePassRequest, encodePassResult } from '../../src/engines/tinker/wire/protobuf.ts';
import { passRequestFromJson, passResultToJson } from '../../src/engines/tinker/wire/tinker-json.ts';
import { type PassRequest, type PassResult, PROTOBUF } from '../../src/engines/tinker/wire/tinker-messages.ts';
import { crossEntropy, decoupledPpo, dro, gspo, importanceSampling, ppo } from '../../src/training/losses.ts';
import { sharedFolder } from '../fixtures/folder.ts';
import { refusal } from '../fixtures/refusal.ts';
import {
  type Answer,
  type Asked,
  failure,
  reset,
  type Script,
  type ScriptedServer,
  scripted,
} from '../fixtures/tinker/scripted-server.ts';

const CLIP = { clipLow: 0.2, clipHigh: 0.28 };
const ADAM: AdamSettings = { learningRate: 0.01, beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 };

const sample: Sample = {
  tokens: Int32Array.of(5, 6, 7, 8, 9),
  mask: Uint8Array.of(0, 0, 1, 1, 0),
  logprobs: Float32Array.of(0, 0, -1, -2, 0),
  advantages: Float32Array.of(0, 0, 1, -1, 0),
  versions: new Int32Array(5),
  temperature: 1,
  weight: 2,
  rolloutId: 'r',
  groupId: 'g',
};

/** What a pass says of every position: the log-probability of the token there. */
const LOGPROBS = [-0.1, -1.5, -1.75, -0.2];

function outputs(request: PassRequest, logprobs: readonly number[] = LOGPROBS): PassResult['outputs'] {
  return request.data.map(() => ({ logprobs: { dtype: 'float32', data: Float32Array.from(logprobs) } }));
}

/** What a server that adds up says of a cross-entropy; of other losses it says nothing. */
function metrics({ loss, data }: PassRequest): PassResult['metrics'] {
  if (loss !== 'cross_entropy') return {};
  const sumOf = (weights: Iterable<number>): number =>
    Array.from(weights).reduce((sum, weight, i) => sum - weight * LOGPROBS[i]!, 0);
  return { 'loss:sum': data.reduce((sum, { inputs }) => sum + sumOf(inputs['weights']!.data), 0) };
}

/** A result of a pass: by default as many outputs as datums, of LOGPROBS, and what a server says that adds up. */
function passed(request: PassRequest, change: Partial<PassResult> = {}): { readonly result: Answer } {
  const whole = { outputType: 'x', outputs: outputs(request), metrics: metrics(request), ...change };
  return { result: { raw: encodePassResult(whole), type: PROTOBUF } };
}

/** A server that computes nothing: every pass has the same log-probabilities. */
class PlayedServer {
  readonly passes: PassRequest[] = [];
  readonly #futures = new Map<string, Answer>();
  /** What a pass is refused or answered with; undefined: accepted, and given LOGPROBS. */
  onPass: (request: PassRequest, asked: Asked) => { readonly refused?: Answer; readonly result?: Answer } | undefined = () =>
    undefined;
  readonly verbs: Record<string, Answer> = {};

  readonly script: Script = (asked) => {
    const { verb, json, headers } = asked;
    if (verb === 'retrieve_future') return this.#futures.get(json['request_id'] as string);
    if (verb === 'forward' || verb === 'forward_backward') {
      const binary = headers['content-type'] === PROTOBUF;
      const request = binary ? decodePassRequest(asked.body) : passRequestFromJson(json, verb === 'forward');
      const { refused, result } = this.onPass(request, asked) ?? {};
      if (refused !== undefined) return refused;
      this.passes.push(request);
      const whole = { outputType: 'x', outputs: outputs(request), metrics: metrics(request) };
      const ordinary = binary ? passed(request).result : { json: passResultToJson(whole) };
      return this.#accept(`pass-${this.passes.length}`, result ?? ordinary);
    }
    if (verb === 'create_model') {
      this.#futures.set('created', { json: { model_id: 'model-1', type: 'create_model' } });
      return { json: { model_id: 'model-1', request_id: 'created' } };
    }
    if (verb in RESULTS) return this.#accept(verb, this.verbs[verb] ?? { json: RESULTS[verb] });
    return undefined;
  };

  /** Passes that were computed, without those that only find out how to speak. */
  get computed(): readonly PassRequest[] {
    return this.passes.filter(({ data }) => data[0]!.tokens.length > 1);
  }

  #accept(id: string, result: Answer): Answer {
    this.#futures.set(id, result);
    return { json: { request_id: id } };
  }
}

const RESULTS: Readonly<Record<string, object>> = {
  optim_step: { metrics: { 'skyrl.ai/grad_norm': 0.5 } },
  save_weights: { path: 'tinker://model-1/weights/state' },
  save_weights_for_sampler: { sampling_session_id: 'published' },
  load_weights: { path: 'tinker://model-1/weights/state' },
};

const it = scripted
  .override('patienceMs', 300)
  .extend('played', () => new PlayedServer())
  .extend('published', (): [string, number][] => [])
  .extend('notices', (): string[] => [])
  .extend('staleness', 0)
  .extend('trainer', async ({ played, connection, server, published, notices, staleness }, { onCleanup }) => {
    server.script = played.script;
    const onNotice = (message: string) => notices.push(message);
    const onPublished = (id: string, version: number) => published.push([id, version]);
    const model = { baseModel: 'base', loraRank: 8, seed: 1, vocabSize: 10, contextLength: 16 };
    const trainer = new TinkerTrainer({ connection, ...model, onPublished, onNotice, staleness });
    onCleanup(() => trainer[Symbol.asyncDispose]());
    return trainer;
  });

const inputsOf = (request: PassRequest) =>
  Object.fromEntries(Object.entries(request.data[0]!.inputs).map(([name, { data }]) => [name, Array.from(data)]));

const rounded = (values: readonly number[] | undefined) => values?.map((value) => Number(value.toFixed(5)));

describe('a datum', () => {
  it('is shifted by one, zero where nothing is trained, and weighted', async ({ trainer, played }) => {
    await trainer.forwardBackward([sample], ppo({ clipLow: 0.2, clipHigh: 0.28 }));
    const [request] = played.computed;
    expect(request).toMatchObject({ loss: 'ppo', forwardOnly: false });
    expect(request!.lossSettings['clip_low_threshold']).toBeCloseTo(0.8, 12);
    expect(request!.lossSettings['clip_high_threshold']).toBeCloseTo(1.28, 12);
    expect(Array.from(request!.data[0]!.tokens)).toEqual([5, 6, 7, 8]);
    expect(inputsOf(request!)).toEqual({ target_tokens: [6, 7, 8, 9], logprobs: [0, -1, -2, 0], advantages: [0, 2, -2, 0] });
  });

  it('is not sent where nothing is trained of a sample', async ({ trainer, played }) => {
    const unmasked = { ...sample, mask: new Uint8Array(5) };
    const { logprobs, trainedTokens } = await trainer.forwardBackward([unmasked, sample, unmasked], crossEntropy());
    expect(logprobs.map(({ length }) => length)).toEqual([0, 2, 0]);
    expect(trainedTokens).toBe(2);
    expect(played.computed[0]!.data).toHaveLength(1);
  });

  it.for([0.7, 2])('is never made of a sample of temperature %d', async (temperature, { trainer, server }) => {
    const trained = trainer.forwardBackward([{ ...sample, temperature }], crossEntropy());
    await expect(trained).rejects.toMatchObject(failure('SAMPLE_REFUSED', /temperature/));
    expect(server.of('forward_backward')).toHaveLength(0);
  });
});

describe('a loss', () => {
  /** −dLoss/dlogprob × weight of importance sampling: ratio × advantage × weight. */
  const slopes = [0, Math.exp(-1.5 + 1) * 1 * 2, Math.exp(-1.75 + 2) * -1 * 2, 0];

  it('that the server does not have is computed here: forward, then weighted cross-entropy', async ({ trainer, played }) => {
    const loss = dro({ beta: 0.5 });
    const { loss: value } = await trainer.forwardBackward([sample], loss);
    const [scoring, backward] = played.computed;
    expect(scoring).toMatchObject({ loss: 'cross_entropy', forwardOnly: true });
    expect(backward).toMatchObject({ loss: 'cross_entropy', forwardOnly: false });
    const terms = [-1.5, -1.75].map((lp, i) => [1, -1][i]! * lp - 0.25 * (lp - [-1, -2][i]!) ** 2);
    expect(value).toBeCloseTo(-2 * (terms[0]! + terms[1]!), 5);
    const weights = [0, 2 * (1 - 0.5 * -0.5), 2 * (-1 - 0.5 * 0.25), 0];
    expect(rounded(inputsOf(backward!)['weights'])).toEqual(rounded(weights));
  });

  it.for([
    ['at the door', { refused: { json: { detail: [{ loc: ['body', 'loss_fn'], msg: 'unknown' }] }, status: 422 } }],
    ['when it is computed', { result: { json: { error: 'unsupported loss_fn', category: 'user' } } }],
  ] satisfies [string, { refused?: Answer; result?: Answer }][])(
    'that the server refuses %s is computed here from then on, and nothing counts on it before',
    async ([_, outcome], { trainer, played, server }) => {
      played.onPass = ({ loss }) => (loss === 'importance_sampling' ? outcome : undefined);
      const step = () => Promise.all([trainer.forwardBackward([sample], importanceSampling()), trainer.optimStep(ADAM)]);
      await step();
      await step();
      const backward = played.computed.filter(({ loss, forwardOnly }) => loss === 'cross_entropy' && !forwardOnly);
      expect(backward).toHaveLength(2);
      for (const pass of backward) expect(rounded(inputsOf(pass)['weights'])).toEqual(rounded(slopes));
      const order = server.asked.map(({ verb }) => verb).filter((verb) => /^(forward_backward|optim_step)$/.test(verb));
      // The trial, the refused one, forward, backward, step; then forward, backward, step.
      const [pass, last] = ['forward_backward', 'optim_step'];
      expect(order).toEqual([pass, pass, pass, pass, last, pass, pass, last]);
    },
  );

  it.for([
    ['says nothing of the sum', undefined],
    ['divides by the weights', 3.25 / 2],
  ] as const)('that has no name there is not trained on a server that %s', async ([_, sum], { trainer, played, server }) => {
    played.onPass = (request) => passed(request, { metrics: sum === undefined ? {} : { 'loss:sum': sum } });
    const outcomes = await Promise.allSettled([trainer.forwardBackward([sample], dro({ beta: 0.5 })), trainer.optimStep(ADAM)]);
    expect(outcomes).toMatchObject([{ reason: failure('TRAINER_FAILED', /loss:sum/) }, { status: 'rejected' }]);
    expect(played.computed.filter(({ forwardOnly }) => !forwardOnly)).toEqual([]);
    expect(server.of('optim_step')).toEqual([]);
  });

  it('that goes by the same name but has another value is found out, and no step is taken', async ({ trainer, played }) => {
    played.onPass = (request) => passed(request, { metrics: { 'loss:sum': 1.5 } });
    const outcomes = await Promise.allSettled([trainer.forwardBackward([sample], importanceSampling()), trainer.optimStep(ADAM)]);
    const reason = failure('TRAINER_FAILED', /importance_sampling is 1.5 .* 1.35/);
    expect(outcomes).toMatchObject([{ reason }, { reason: failure('TRAINER_FAILED') }]);
  });

  /** `sums`: what the server says of a loss by its name; it refuses others. `isPlain`: whether its cross_entropy adds up. */
  const serverWith = (played: PlayedServer, sums: Readonly<Record<string, (data: PassRequest) => number>>, isPlain: boolean) => {
    played.onPass = (request) => {
      const { loss, data } = request;
      const own = [0, -1, -2, -1.5, -0.5];
      const probed = {
        outputs: outputs(request, data[0]!.tokens.length === 5 ? own : LOGPROBS.slice(0, data[0]!.tokens.length)),
      };
      const sum = loss === 'cross_entropy' ? (isPlain ? 5 : 5 / 4) : sums[loss]?.(request);
      if (sum === undefined)
        return { refused: { json: { detail: [{ loc: ['body', 'loss_fn'], msg: 'unknown' }] }, status: 422 } };
      return passed(request, { ...probed, metrics: { 'loss:sum': sum } });
    };
  };
  /** −Σ weight(r)·A·(lp or 1) of the probe: r is e^0.1, e^0.7, e^−0.75 and e^−0.25, A is 1, −1, ½ and −2. */
  const probed = (weigh: (r: number) => number, times: readonly number[] = [1, 1, 1, 1]) =>
    -[0.1, 0.7, -0.75, -0.25].reduce((sum, log, i) => sum + weigh(Math.exp(log)) * [1, -1, 0.5, -2][i]! * times[i]!, 0);
  const byCispo = () => probed((r) => Math.min(r, 5), [-1, -2, -1.5, -0.5]);

  it('is asked for before the run: by its name, by the name of one with its gradient, or as a weighted cross-entropy', async ({
    trainer,
    played,
  }) => {
    serverWith(played, { cispo: byCispo, importance_sampling: () => probed((r) => r) }, true);
    for (const loss of [importanceSampling(), decoupledPpo(CLIP), gspo(CLIP), dro({ beta: 0.5 })])
      await trainer.checkLoss(loss, []);
    expect(played.computed.every(({ forwardOnly }) => forwardOnly)).toBe(true);
    expect(played.computed.find(({ loss }) => loss === 'cispo')?.lossSettings).toEqual({
      clip_low_threshold: 0,
      clip_high_threshold: 5,
    });
  });

  it('that the server cannot train, or calls another loss, is refused before the run, with those it can', async ({
    trainer,
    played,
  }) => {
    serverWith(played, { cispo: byCispo, importance_sampling: () => probed((r) => r), gspo: () => 1 }, false);
    const others = [importanceSampling(), decoupledPpo(CLIP), dro({ beta: 0.5 })];
    const refused = failure('USAGE', /gspo .*loss:sum.* can train importance_sampling, decoupled_ppo$/);
    await expect(trainer.checkLoss(gspo(CLIP), others)).rejects.toMatchObject(refused);
    serverWith(played, {}, false);
    const none = failure('USAGE', /no other loss either/);
    await expect(trainer.checkLoss(dro({ beta: 0.5 }), [importanceSampling()])).rejects.toMatchObject(none);
  });

  /** A server that reports no sum. `terms`: what it says of each position, as SkyRL's JAX backend does. */
  const silentServer = (
    played: PlayedServer,
    { terms, takesWeights = true }: { terms?: number; takesWeights?: boolean } = {},
  ) => {
    played.onPass = (request) => {
      const [{ tokens, inputs }] = request.data as [PassRequest['data'][number]];
      if (request.loss !== 'cross_entropy' && inputs['weights'] !== undefined && !takesWeights)
        return { refused: { json: { detail: 'loss_fn_inputs.weights is not an input of it' }, status: 400 } };
      const own = [0, -1, -2, -1.5, -0.5].slice(0, tokens.length);
      const elementwise_loss = { dtype: 'float32' as const, data: Float32Array.from(own, () => (terms ?? 0) / own.length) };
      const told = terms !== undefined && request.loss !== 'cross_entropy' ? { elementwise_loss } : {};
      return passed(request, { outputs: outputs(request, own).map((one) => ({ ...one, ...told })), metrics: {} });
    };
  };
  const masksOf = (played: PlayedServer, named: string) =>
    played.computed.filter(({ loss }) => loss === named).map((request) => [request.forwardOnly, inputsOf(request)['weights']]);

  it.for([
    [true, [0, 1, 1, 0]],
    [false, undefined],
  ] as const)(
    'that the server says nothing of is asked for by a backward pass of no gradient, to a model of its own (weights taken: %s)',
    async ([takesWeights, mask], { trainer, played, server, notices }) => {
      silentServer(played, { takesWeights });
      await trainer.checkLoss(importanceSampling(), []);
      const probe = played.computed.filter(({ loss, forwardOnly }) => loss === 'importance_sampling' && !forwardOnly);
      expect(probe.map((request) => inputsOf(request)['advantages'])).toEqual([[0, 0, 0, 0, 0]]);
      await expect.poll(() => [server.of('create_model').length, server.of('unload_model').length]).toEqual([2, 1]);
      expect(notices).toEqual([
        expect.stringMatching(takesWeights ? /does not say.*sent as weights$/ : /does not say.*not sent$/),
      ]);
      played.onPass = () => undefined;
      await trainer.forwardBackward([sample], importanceSampling());
      expect(masksOf(played, 'importance_sampling').at(-1)).toEqual([false, mask]);
    },
  );

  it('that the server tells term by term is compared, and never asked for by a backward pass, whose rows would count', async ({
    trainer,
    played,
    notices,
  }) => {
    silentServer(played, { terms: probed((r) => r) });
    await trainer.checkLoss(importanceSampling(), []);
    expect(masksOf(played, 'importance_sampling')).toEqual([[true, [0, 1, 1, 1, 1]]]);
    expect(notices).toEqual([expect.stringMatching(/JAX.*divides.*does not clip gradients; masks are sent as weights$/)]);
    silentServer(played, { terms: 5 });
    await expect(trainer.checkLoss(importanceSampling(), [])).rejects.toMatchObject(
      failure('USAGE', /importance_sampling is 5 /),
    );
  });

  describe('with staleness', () => {
    it.override('staleness', 1);

    it('is refused where older weights would come back into training', async ({ trainer, played }) => {
      silentServer(played, { terms: probed((r) => r) });
      const refused = failure('USAGE', /^staleness: expected 0, found 1/);
      await expect(trainer.checkLoss(importanceSampling(), [])).rejects.toMatchObject(refused);
    });
  });

  it.for([
    ['NaN', [-0.1, Number.NaN, -1, -1], 'TRAINER_FAILED', /NaN/],
    ['one too few', [-0.1, -1, -1], 'POLICY_GARBLED', /3 log-probabilities, expected 4/],
    ['positive', [-0.1, -1, 0.5, -1], 'POLICY_GARBLED', /log-probability 0.5, expected at most 0/],
  ] as const)(
    'is not computed from log-probabilities that are of no use: %s',
    async ([_, logprobs, code, message], { trainer, played }) => {
      played.onPass = (request) => passed(request, { outputs: outputs(request, logprobs), metrics: {} });
      const trained = trainer.forwardBackward([sample], crossEntropy());
      await expect(trained).rejects.toMatchObject(failure(code, message));
      await expect(trainer.optimStep(ADAM)).rejects.toMatchObject(failure(code));
    },
  );
});

describe('a pass to a server without protobuf', () => {
  it('is one request, however large, as such servers compute what has arrived', async ({ trainer, played, server }) => {
    const long = { ...sample, rolloutId: 'long' };
    const { script } = server;
    server.script = (asked, count) =>
      asked.headers['content-type'] === PROTOBUF ? { json: { detail: 'no' }, status: 415 } : script(asked, count);
    const { logprobs } = await trainer.forwardBackward(Array(3000).fill(long), crossEntropy());
    expect(logprobs).toHaveLength(3000);
    expect(played.computed.map(({ data }) => data.length)).toEqual([3000]);
  });
});

describe('a pass in several chunks', () => {
  it.override('config', { fwdbwd_max_chunk_len: 1 });

  it('is not put together from outputs of one chunk too many and of another too few', async ({ trainer, played }) => {
    const counts = [2, 0];
    played.onPass = (request) => {
      if (request.data[0]!.tokens.length === 1) return undefined;
      return passed(request, { outputs: Array(counts.shift()).fill(outputs(request)[0]) });
    };
    const scored = trainer.forward([sample, sample]);
    await expect(scored).rejects.toMatchObject(failure('POLICY_GARBLED', 'the server gave 2 outputs for 1 samples'));
  });

  it('of which one came through is not sent again when another is refused for its loss', async ({ trainer, played }) => {
    let sent = 0;
    played.onPass = (request) => {
      if (request.loss === 'cross_entropy' || ++sent === 1) return undefined;
      return { result: { json: { error: 'loss_fn_outputs went wrong', category: 'user' } } };
    };
    await expect(trainer.forwardBackward([sample, sample], importanceSampling())).rejects.toThrow('not to be trusted');
    expect(played.computed.filter(({ loss }) => loss === 'cross_entropy')).toEqual([]);
    await expect(trainer.optimStep(ADAM)).rejects.toThrow('not to be trusted');
  });

  it('is not read from one future twice', async ({ trainer, played, server }) => {
    const { script } = server;
    server.script = async (asked, count) => {
      if (asked.verb === 'retrieve_future') await new Promise((resolve) => setTimeout(resolve, 50));
      const answer = await script(asked, count);
      const isPass = asked.verb === 'forward_backward' && played.computed.length > 1;
      return isPass ? { json: { request_id: `pass-${played.passes.length - 1}` } } : answer;
    };
    await expect(trainer.forward([sample, sample])).rejects.toMatchObject(
      failure('POLICY_GARBLED', 'names the future of another request'),
    );
  });
});

describe('a server of before protobuf and seq_id', () => {
  const old = (status: number): PlayedServer['onPass'] => {
    return (_, { headers }) => {
      const refused: Answer =
        status === 500 ? { raw: 'Internal Server Error', type: 'text/plain', status } : { json: { detail: 'no' }, status };
      return headers['content-type'] === PROTOBUF ? { refused } : undefined;
    };
  };

  it.for([400, 415, 422, 500])(
    'is spoken to in JSON after it answered %i, and asked only once',
    async (status, { trainer, played, server }) => {
      played.onPass = old(status);
      await trainer.forward([sample]);
      await trainer.forwardBackward([sample], crossEntropy());
      const types = server.asked
        .filter(({ verb }) => verb.startsWith('forward'))
        .map(({ verb, headers }) => [verb, headers['content-type']]);
      expect(types).toEqual([
        ['forward_backward', PROTOBUF],
        ['forward', 'application/json'],
        ['forward_backward', 'application/json'],
      ]);
    },
  );

  it('is never sent a step again that may have arrived: what was in training is lost', async ({ trainer, played, server }) => {
    played.onPass = old(422);
    await trainer.forwardBackward([sample], crossEntropy());
    server.instead('optim_step', reset);
    await expect(trainer.optimStep(ADAM)).rejects.toMatchObject(failure('POLICY_LOST'));
    expect(server.of('optim_step')).toHaveLength(1);
    await expect(trainer.forward([sample])).rejects.toMatchObject(failure('POLICY_LOST'));
  });
});

describe('a server that makes a model of another base model', () => {
  it('is refused, and the model is given back', async ({ trainer, server }) => {
    const { script } = server;
    const other = { json: { model_id: 'model-1', request_id: 'created', base_model: 'smaller' } };
    server.script = (asked, count) => {
      const ordinary = script(asked, count);
      return asked.verb === 'create_model' ? other : ordinary;
    };
    await expect(trainer.forward([sample])).rejects.toMatchObject({
      code: 'POLICY_REFUSED',
      message: 'the server made a model of smaller, asked for one of base',
    });
    expect(server.of('unload_model')).toHaveLength(1);
  });
});

/** As SkyRL 0.4: a name is taken once it was seen, and only the first request of a model loads. */
describe('a server that knows only passes and steps again', () => {
  /** The first answer to each of these verbs is lost. */
  function forgetful(server: ScriptedServer, ...verbs: string[]): void {
    const { script } = server;
    const taken = new Set<string>();
    let models = 0;
    server.script = (asked, count) => {
      const { verb, json } = asked;
      if (verb === 'create_model') models++;
      if (!verbs.includes(verb)) return script(asked, count);
      const name = verb === 'load_weights' ? `model ${models}` : `${json['path'] ?? json['sampling_session_seq_id']}`;
      const again =
        verb === 'load_weights' ? { json: { detail: 'LoadWeights is not permitted with seq_id 1' }, status: 400 } : TAKEN;
      if (taken.has(name)) return again;
      taken.add(name);
      return count === 1 ? reset : script(asked, count);
    };
  }
  const TAKEN: Answer = { json: { detail: 'Checkpoint already exists for model' }, status: 409 };

  it('is asked to save under another name where an answer was lost', async ({ trainer, server, published }) => {
    await trainer.forwardBackward([sample], crossEntropy());
    forgetful(server, 'save_weights', 'save_weights_for_sampler');
    await trainer.save(folder('saved'));
    await trainer.publish(1);
    expect(published).toEqual([['published', 1]]);
    const names = server.of('save_weights').map(({ json }) => json['path']);
    expect(names).toHaveLength(3);
    expect(new Set(names).size).toBe(2);
    await trainer.optimStep(ADAM);
  });

  it('is given another model to load into where an answer was lost', async ({ trainer, server }) => {
    await trainer.save(folder('saved'));
    forgetful(server, 'load_weights');
    await trainer.load(folder('saved'));
    expect(server.of('load_weights')).toHaveLength(2);
    expect(server.of('create_model')).toHaveLength(3);
    expect(server.of('unload_model')).not.toHaveLength(0);
  });

  it('that never answers a load has lost the model, and nobody is sent to another address', async ({ trainer, server }) => {
    await trainer.save(folder('saved'));
    server.instead('load_weights', reset);
    await expect(trainer.load(folder('saved'))).rejects.toMatchObject({
      code: 'POLICY_LOST',
      hint: expect.not.stringContaining('TINKER_BASE_URL'),
    });
  });
});

describe('verbs', () => {
  it('are numbered 1, 2, 3 … and sent before the results of earlier ones are there', async ({ trainer, played, server }) => {
    await trainer.forwardBackward([sample], crossEntropy());
    server.instead('retrieve_future', { json: { type: 'try_again' } });
    const results = Promise.all([trainer.forwardBackward([sample], crossEntropy()), trainer.optimStep(ADAM), trainer.publish(4)]);
    await expect.poll(() => server.of('save_weights_for_sampler')).toHaveLength(1);
    server.script = played.script;
    await results;
    expect(played.passes.map(({ seqId }) => seqId)).toEqual([1, 2, 3]);
    expect(server.of('optim_step')[0]?.json).toMatchObject({ seq_id: 4, adam_params: { grad_clip_norm: 1, eps: 1e-8 } });
    expect(server.of('save_weights_for_sampler')[0]?.json).toMatchObject({ seq_id: 5 });
  });

  it('after a gradient that failed at the server fail until something is loaded', async ({ trainer, played }) => {
    await trainer.forwardBackward([sample], crossEntropy());
    // The step's result is there before the failure of its gradient is known.
    const late: Answer = (response) => {
      const failure = JSON.stringify({ error: 'out of memory', category: 'server' });
      setTimeout(() => response.writeHead(200, { 'content-type': 'application/json' }).end(failure), 100);
    };
    played.onPass = () => ({ result: late });
    const both = await Promise.allSettled([trainer.forwardBackward([sample], crossEntropy()), trainer.optimStep(ADAM)]);
    expect(both).toMatchObject([{ reason: { code: 'TRAINER_FAILED' } }, { reason: { code: 'TRAINER_FAILED' } }]);
    played.onPass = () => undefined;
    await expect(trainer.forwardBackward([sample], crossEntropy())).rejects.toThrow(/out of memory/);
    await expect(trainer.publish(1)).rejects.toMatchObject({ code: 'TRAINER_FAILED', hint: expect.stringMatching(/load/) });
    await trainer.load(folder('plain'));
    await trainer.forwardBackward([sample], crossEntropy());
    await trainer.optimStep(ADAM);
  });

  it('do not step after a gradient that was refused here, known or not', async ({ trainer, server }) => {
    const refused = { ...sample, advantages: Float32Array.of(0, 0, Number.NaN, 0, 0) };
    const passes = [refused, sample].map((one) => trainer.forwardBackward([one], crossEntropy()));
    const all = await Promise.allSettled([...passes, trainer.optimStep(ADAM)]);
    const [first, last] = [{ reason: { code: 'SAMPLE_REFUSED' } }, { reason: { code: 'TRAINER_FAILED' } }];
    expect(all).toMatchObject([first, { status: 'fulfilled' }, last]);
    // However much later.
    await expect(trainer.optimStep(ADAM)).rejects.toMatchObject(failure('TRAINER_FAILED'));
    expect(server.of('optim_step')).toHaveLength(0);
    await trainer.forwardBackward([sample], crossEntropy());
    expect(await trainer.optimStep(ADAM)).toEqual({ gradNorm: 0.5 });
  });

  it.for([
    [{ metrics: { 'grad_norm:mean': 2 } }, 2],
    [{ metrics: { lr: 1 } }, undefined],
    [{ metrics: null }, undefined],
    [{}, undefined],
  ])('that step tell the gradient’s norm where the server does: %j', async ([json, gradNorm], { trainer, played }) => {
    played.verbs['optim_step'] = { json };
    await trainer.forwardBackward([sample], crossEntropy());
    expect(await trainer.optimStep(ADAM)).toEqual({ gradNorm });
  });

  it('that publish do not take a session of earlier weights for one of these', async ({ trainer, published }) => {
    await trainer.publish(1);
    await expect(trainer.publish(2)).rejects.toMatchObject(failure('POLICY_GARBLED'));
    expect(published).toEqual([['published', 1]]);
  });

  it('that publish tell the session, also where the server only gives a path', async ({ trainer, played, published, server }) => {
    await trainer.publish(1);
    played.verbs['save_weights_for_sampler'] = { json: { path: 'tinker://model-1/sampler_weights/x' } };
    await trainer.publish(2);
    expect(published).toEqual([
      ['published', 1],
      ['sampling-1', 2],
    ]);
    expect(server.of('create_sampling_session')[0]?.json).toMatchObject({ model_path: 'tinker://model-1/sampler_weights/x' });
  });
});

const scratch = sharedFolder();
const folder = (name: string) => join(scratch, name);
beforeAll(async () => {
  for (const name of ['plain', 'saved', 'other', 'damaged', 'sneaky']) await mkdir(folder(name));
  await writeFile(join(folder('plain'), 'config.json'), '{}');
  await writeFile(join(folder('damaged'), 'tinker.json'), '{"path":');
  const state = { server: 'http://x', baseModel: 'base', loraRank: 8, path: 'tinker://m/weights/../../n', savedAt: 'now' };
  await writeFile(join(folder('sneaky'), 'tinker.json'), JSON.stringify(state));
});

describe('what is saved', () => {
  it('is a file that says where; loading makes a new model, and loads into it first of all', async ({ trainer, server }) => {
    await trainer.save(folder('saved'));
    const state = JSON.parse(await readFile(join(folder('saved'), 'tinker.json'), 'utf8'));
    expect(state).toMatchObject({ server: server.url, baseModel: 'base', loraRank: 8, path: 'tinker://model-1/weights/state' });
    await trainer.load(folder('saved'));
    expect(server.of('create_model')).toHaveLength(2);
    expect(server.of('load_weights')[0]?.json).toMatchObject({ seq_id: 1, path: state.path, optimizer: true });
    await trainer.forget(folder('saved'));
    const removed = server.asked.find(({ method }) => method === 'DELETE');
    expect(removed?.verb).toBe('training_runs/model-1/checkpoints/weights/state');
  });

  it('by another base model, or is damaged, or is no path, is not loaded', async ({ trainer, server }) => {
    const state = { server: server.url, baseModel: 'another', loraRank: 8, path: 'tinker://m/weights/n', savedAt: 'now' };
    await writeFile(join(folder('other'), 'tinker.json'), JSON.stringify(state));
    for (const name of ['other', 'damaged', 'sneaky']) {
      await expect(trainer.load(folder(name))).rejects.toMatchObject(failure('CHECKPOINT_MISMATCH'));
      await trainer.forget(folder(name));
    }
    expect(server.of('create_model')).toHaveLength(0);
  });

  it('and gone at a server that notices late is refused, saying what to do', async ({ trainer, played }) => {
    await trainer.save(folder('saved'));
    played.verbs['load_weights'] = { json: { error: 'there is nothing saved there', category: 'user' } };
    await expect(trainer.load(folder('saved'))).rejects.toThrow(
      refusal('POLICY_REFUSED', /cannot load tinker:\/\/model-1\/weights\/state: .*nothing saved there/, /TINKER_BASE_URL/),
    );
  });

  it('and gone at the server is refused, saying what is gone', async ({ trainer, server }) => {
    await trainer.save(folder('saved'));
    server.instead('load_weights', { json: { detail: 'Checkpoint not found' }, status: 404 });
    await expect(trainer.load(folder('saved'))).rejects.toMatchObject(
      failure('POLICY_REFUSED', /cannot load tinker:\/\/model-1\/weights\/state/),
    );
    // The model that was made for it is not left behind.
    expect(server.of('unload_model')).toHaveLength(1);
  });
});
