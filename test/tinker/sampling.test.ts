/** Sampling through the Tinker API: from the weights that were meant, with the log-probabilities of the plain softmax. */
import { cp } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { EmbeddedModel } from '../../src/engines/embedded/embedded-model.ts';
import { TINKER_LIMITS } from '../../src/engines/tinker/server/limits.ts';
import { loadTokenizer } from '../../src/tokens/tokenizer.ts';
import { ROOT } from '../cli/command.ts';
import { REGULAR, randomSample, randomTokens, request } from '../fixtures/nn/models.ts';
import { ADAM, answeredBy, type PlainClient, passOf, serve, useServer } from '../fixtures/tinker/server.ts';

let now = Date.now();
const home = useServer({ turn: 0 }, () => now);
let client: PlainClient;
beforeAll(() => {
  client = home.client;
});

const PROMPT = randomTokens(REGULAR, 7, 3);
const prompt = (ids: Iterable<number>) => ({ chunks: [{ type: 'encoded_text', tokens: [...ids] }] });
const base = { base_model: 'small', prompt: prompt(PROMPT), num_samples: 1, sampling_params: { max_tokens: 12, seed: 5 } };
const asample = async (body: object) => await client.sampleReply(await client.post('asample', body));

/** What the plain softmax of these weights makes of `ids` behind the prompt. */
async function plainLogprobs(dir: string, promptIds: Int32Array, ids: Int32Array): Promise<Float32Array> {
  await using model = await EmbeddedModel.open({ dir, threads: 1 });
  const tokens = Int32Array.from([...promptIds, ...ids]);
  const mask = Uint8Array.from(tokens, (_, i) => (i < promptIds.length ? 0 : 1));
  return (await model.forward([{ ...randomSample(REGULAR, tokens.length, 1), tokens, mask }]))[0]!;
}

/** A sample request of a sampling session of its own, without its seq_id. */
async function sessionSample(source: object = { base_model: 'small' }) {
  const session_id = await client.session();
  const opened = await client.post('create_sampling_session', { session_id, sampling_session_seq_id: 0, ...source });
  const { sampling_session_id } = opened.json;
  return { session_id, body: { ...base, base_model: undefined, sampling_session_id } };
}

/** A session that asks for this many samples of 32 long sequences each, all at once. */
async function flood(count: number) {
  const { session_id, body } = await sessionSample();
  const ask = (seq_id: number) => client.post('asample', { ...body, num_samples: 32, seq_id, sampling_params: { seed: seq_id } });
  return { session_id, asked: await Promise.all(Array.from({ length: count }, (_, i) => ask(i))) };
}

/** Trains one step and publishes; the sampling session. */
async function publish(modelId: string, seqId: number, seed: number): Promise<string> {
  await client.pass(passOf(modelId, seqId, [randomSample(REGULAR, 20, seed)]));
  await client.post('optim_step', { model_id: modelId, seq_id: seqId + 1, adam_params: ADAM });
  const body = { model_id: modelId, seq_id: seqId + 2, sampling_session_seq_id: seqId };
  return String((await client.result(await client.post('save_weights_for_sampler', body)))['sampling_session_id']);
}

/** A model with so many sampling sessions, each of other weights. */
async function published(count: number) {
  const modelId = await client.model();
  const sessions: string[] = [];
  for (let i = 0; i < count; i++) sessions.push(await publish(modelId, 3 * i + 1, i));
  return { modelId, sessions };
}

describe('a sample', () => {
  it('is what the engine samples with the same seed', async () => {
    const { sequences } = await asample(base);
    await using model = await EmbeddedModel.open({ dir: home.model, threads: 1 });
    const direct = await model.sample(request(PROMPT, { seed: 5 }));
    expect(sequences).toEqual([{ stopReason: 'length', tokens: direct.ids, logprobs: direct.logprobs }]);
  });

  it.each([{ temperature: 0.3 }, { temperature: 0 }, { top_k: 3 }, { top_p: 0.5 }, { temperature: 1.7, top_k: 9, top_p: 0.9 }])(
    'drawn with %o has the log-probabilities of the plain softmax',
    async (params) => {
      const { sequences } = await asample({ ...base, num_samples: 3, sampling_params: { max_tokens: 9, seed: 1, ...params } });
      for (const { tokens, logprobs } of sequences) expect(logprobs).toEqual(await plainLogprobs(home.model, PROMPT, tokens));
    },
  );

  it('has different sequences, and the same ones again for the same seed', async () => {
    const [first, again] = [await asample({ ...base, num_samples: 4 }), await asample({ ...base, num_samples: 4 })];
    expect(again).toEqual(first);
    expect(new Set(first.sequences.map(({ tokens }) => tokens.join())).size).toBe(4);
    const unseeded = { ...base, sampling_params: { max_tokens: 12 } };
    expect((await asample(unseeded)).sequences[0]!.tokens).not.toEqual((await asample(unseeded)).sequences[0]!.tokens);
  });

  it('ends with a stop id, which is part of it, and otherwise where the context ends', async () => {
    const [whole] = (await asample({ ...base, sampling_params: { seed: 5 } })).sequences;
    expect(whole!.tokens).toHaveLength(REGULAR.contextLength - PROMPT.length);
    const stop = whole!.tokens[3]!;
    const [cut] = (await asample({ ...base, sampling_params: { seed: 5, stop: [stop] } })).sequences;
    expect(cut).toMatchObject({ stopReason: 'stop' });
    expect(cut!.tokens).toEqual(whole!.tokens.slice(0, whole!.tokens.indexOf(stop) + 1));
  });

  it('has log-probabilities of the prompt where they are asked for, none for the first token', async () => {
    const { promptLogprobs } = await asample({ ...base, prompt_logprobs: true });
    expect(promptLogprobs![0]).toBeNaN();
    expect(promptLogprobs!.slice(1)).toEqual(await plainLogprobs(home.model, PROMPT.slice(0, 1), PROMPT.slice(1)));
    expect(await client.result(await client.post('asample', { ...base, prompt_logprobs: true }))).toMatchObject({
      prompt_logprobs: [null, ...Array(6).fill(expect.any(Number))],
    });
  });

  it('is the same future when it is asked for again, and refused with another body under its seq_id', async () => {
    const body = { ...(await sessionSample()).body, seq_id: 0 };
    const [first, again] = [await client.post('asample', body), await client.post('asample', body)];
    expect(again.json).toEqual(first.json);
    expect((await client.post('asample', { ...body, num_samples: 2 })).status).toBe(409);
  });

  it('has a seq_id of up to 63 bits, and is not taken for its neighbour', async () => {
    const { body } = await sessionSample();
    const ask = async (seqId: string, more: object = {}) => {
      const text = JSON.stringify({ ...body, ...more, seq_id: 0 }).replace('"seq_id":0', `"seq_id": ${seqId}`);
      return await answeredBy(await client.send('asample', text));
    };
    const ids = ['324244282000000000', '324244282000000001', '324244282000000000'];
    const [first, next, again] = (await Promise.all(ids.map((id) => ask(id)))).map(({ json }) => json['request_id']);
    expect(first).toEqual(expect.any(String));
    expect(next).not.toBe(first);
    expect(again).toBe(first);
    expect((await ask('324244282000000001', { num_samples: 2 })).status).toBe(409);
    expect((await ask('9007199254740993.5')).status).toBe(400);
  });

  it('does not wait for all that another session has asked for before', async () => {
    const { asked } = await flood(24);
    const last = client.result(asked.at(-1)!).then(() => 'the other’s last');
    const own = asample(base).then(() => 'its own');
    expect(await Promise.race([last, own])).toBe('its own');
    await last;
  });

  it('is cancelled with its session', async () => {
    const { session_id, asked } = await flood(24);
    await client.post(`sessions/${session_id}/finish`, {});
    expect(await client.result(asked.at(-1)!)).toMatchObject({ error: expect.stringContaining('cancel') });
  });

  it('of a session that is silent is held back until it is heard of again', async () => {
    const [quiet, dead] = [await flood(10), await flood(10)];
    now += 61_000;
    // More than both have asked for: had they kept their turns, they would be done by now.
    for (const one of (await flood(30)).asked) await client.result(one);
    await client.post(`sessions/${dead.session_id}/finish`, {});
    expect(await client.result(dead.asked.at(-1)!)).toMatchObject({ error: expect.stringContaining('cancel') });
    await client.post('session_heartbeat', { session_id: quiet.session_id });
    home.server.endIdle();
    for (const one of quiet.asked) expect(await client.result(one)).toHaveProperty('sequences');
  });

  it('is stopped when it is cancelled, and its future fails', async () => {
    const all = await Promise.all(
      Array.from({ length: 60 }, (_, seed) => client.post('asample', { ...base, num_samples: 8, sampling_params: { seed } })),
    );
    const last = all.at(-1)!;
    expect((await client.post('cancel_future', { request_id: last.json['request_id'] })).status).toBe(200);
    expect(await client.result(last)).toMatchObject({ category: 'user', error: expect.stringContaining('cancel') });
    for (const one of all.slice(0, -1)) expect((await client.sampleReply(one)).sequences).toHaveLength(8);
  });
});

describe('sampler weights', () => {
  it('are those of the moment they were saved, however many are sampled from at once', async () => {
    const { modelId, sessions } = await published(6);
    const folders = Array.from({ length: 6 }, (_, i) => join(home.state, modelId, 'unnamed', String(i + 1)));
    const asked = Array.from({ length: 60 }, (_, i) => i % 6);
    const replies = await Promise.all(
      asked.map((which, i) => asample({ ...base, base_model: undefined, sampling_session_id: sessions[which], seq_id: i })),
    );
    for (const [which, folder] of folders.entries()) {
      await using model = await EmbeddedModel.open({ dir: folder, threads: 1 });
      const { ids, logprobs } = await model.sample(request(PROMPT, { seed: 5 }));
      for (const [i, { sequences }] of replies.entries()) {
        if (asked[i] === which) expect(sequences).toEqual([{ stopReason: 'length', tokens: ids, logprobs }]);
      }
    }
  });

  it('that do not fit beside those in use get their turn, however much is asked of those', async () => {
    const { sessions } = await published(TINKER_LIMITS.samplers + 1);
    const long = { ...base, base_model: undefined, num_samples: 16, sampling_params: { seed: 5 } };
    const ask = (sampling_session_id: string, seq_id: number) => client.post('asample', { ...long, sampling_session_id, seq_id });
    const fifth = sessions.pop()!;
    const asked = await Promise.all(sessions.map((id) => Promise.all(Array.from({ length: 12 }, (_, i) => ask(id, i)))));
    const own = client.result(await ask(fifth, 0)).then(() => 'its own');
    const ends = asked.map((all) => client.result(all.at(-1)!).then(() => 'the end of another queue'));
    expect(await Promise.race([own, ...ends])).toBe('its own');
    await Promise.all(ends);
  });

  it('without a name are kept for the latest few only, and those that are gone say so', async () => {
    const { sessions } = await published(TINKER_LIMITS.unnamed + 1);
    const ask = async (sampling_session_id: string) =>
      await client.result(await client.post('asample', { ...base, base_model: undefined, sampling_session_id, seq_id: 0 }));
    expect(await ask(sessions[0]!)).toMatchObject({ category: 'user', error: expect.stringContaining('latest 8 are kept') });
    expect(await ask(sessions[1]!)).toHaveProperty('sequences');
  });

  it('with a name are found by their path, and no others are taken for them after they were replaced', async () => {
    const modelId = await client.model();
    const save = { model_id: modelId, path: 'mine', seq_id: 1 };
    const { path } = await client.result(await client.post('save_weights_for_sampler', save));
    expect(await asample({ ...base, base_model: undefined, model_path: path })).toEqual(await asample(base));
    const { body } = await sessionSample({ model_path: path });
    expect((await client.get(`samplers/${body.sampling_session_id}`)).json).toMatchObject({
      base_model: 'small',
      model_path: path,
    });
    await client.send(`training_runs/${modelId}/checkpoints/sampler_weights/mine`, undefined, {}, 'DELETE');
    await client.pass(passOf(modelId, 2, [randomSample(REGULAR, 20, 1)]));
    await client.post('optim_step', { model_id: modelId, seq_id: 3, adam_params: ADAM });
    await client.result(await client.post('save_weights_for_sampler', { ...save, seq_id: 4 }));
    // Other weights, so that the old ones are not in memory any more.
    for (let i = 0; i < 4; i++)
      await asample({ ...base, base_model: undefined, sampling_session_id: await publish(modelId, 3 * i + 5, i), seq_id: 0 });
    const late = await client.post('asample', { ...body, seq_id: 1 });
    expect(await client.result(late)).toMatchObject({ category: 'user', error: expect.stringContaining('replaced') });
    expect(await asample({ ...base, base_model: undefined, model_path: path })).not.toEqual(await asample(base));
  });
});

describe('stop texts', () => {
  it('end a sequence with the token that completes one, wherever tokens begin', async () => {
    const dir = join(home.dir, 'base');
    await cp(join(ROOT, 'models/base'), dir, { recursive: true });
    const spoken = await serve({ model: dir, state: home.state });
    try {
      const tokenizer = await loadTokenizer(dir);
      const body = { base_model: 'base', prompt: prompt(tokenizer.encodeText('The lamp is ')), num_samples: 1 };
      const ask = async (stop?: string[]) => {
        const answered = await spoken.client.post('asample', { ...body, sampling_params: { max_tokens: 40, seed: 9, stop } });
        return (await spoken.client.sampleReply(answered)).sequences[0]!;
      };
      const whole = await ask();
      const text = tokenizer.decode(whole.tokens);
      const stop = text.slice(9, 12);
      const cut = await ask(['never said, this', stop]);
      expect(cut.stopReason).toBe('stop');
      expect(cut.tokens).toEqual(whole.tokens.slice(0, cut.tokens.length));
      expect(tokenizer.decode(cut.tokens)).toContain(stop);
      expect(tokenizer.decode(cut.tokens.slice(0, -1))).not.toContain(stop);
      expect(cut.logprobs).toEqual(whole.logprobs!.slice(0, cut.tokens.length));
    } finally {
      await spoken.close();
    }
  });
});
