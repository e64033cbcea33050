/** What is accepted and what is refused as JSON, and with which words. */
import { describe, expect, it } from 'vitest';
import { WireError } from './codec.ts';
import {
  passRequestFromJson,
  passRequestToJson,
  passResultFromJson,
  passResultToJson,
  sampleCallFromJson,
  sampleReplyFromJson,
  sampleReplyToJson,
} from './tinker-json.ts';
import type { PassRequest } from './tinker-messages.ts';

function request(change: { chunks?: unknown; weights?: unknown; input?: object; body?: object } = {}): unknown {
  const weights = change.weights ?? { data: [0, 0.5], dtype: 'float32', shape: [2] };
  const chunks = change.chunks ?? [{ type: 'encoded_text', tokens: [1, 2] }];
  const data = [{ model_input: { chunks }, loss_fn_inputs: { weights } }];
  const input = { data, loss_fn: 'cross_entropy', ...change.input };
  return { model_id: 'm', seq_id: 1, forward_backward_input: input, ...change.body };
}
const tensor = (data: unknown, dtype = 'float32') => ({ weights: { data, dtype } });
const place = 'data[0].loss_fn_inputs.weights';

describe('a pass request in JSON', () => {
  it('may leave out its settings and its number, and have null for them', () => {
    const read = passRequestFromJson(request({ input: { loss_fn_config: null }, body: { seq_id: null } }), false);
    expect(read).toMatchObject({ modelId: 'm', seqId: undefined, loss: 'cross_entropy', lossSettings: {}, forwardOnly: false });
  });

  it('has text in several chunks, which is one text', () => {
    const chunks = [{ type: 'encoded_text', tokens: [1, 2] }, { tokens: [] }, { type: 'encoded_text', tokens: [3] }];
    expect(passRequestFromJson(request({ chunks }), false).data[0]!.tokens).toEqual(Int32Array.of(1, 2, 3));
  });

  it.each([
    ['nothing', undefined, 'the body: expected object, found nothing'],
    ['no input', { model_id: 'm' }, 'forward_backward_input: expected object, found nothing'],
    ['a seq_id of 0', request({ body: { seq_id: 0 } }), 'seq_id: expected number to be >=1, found 0'],
    ['a text in numbers', request(tensor([1, '2'])), `${place}.data[1]: expected a number that fits float32, found "2"`],
    ['null in numbers', request(tensor([null])), `${place}.data[0]: expected a number that fits float32, found null`],
    ['a number beyond float32', request(tensor([1e39])), `${place}.data[0]: expected a number that fits float32, found 1e+39`],
    ['a vast id', request(tensor([2 ** 31], 'int64')), `${place}.data[0]: expected an integer of 32 bits, found 2147483648`],
    ['another dtype', request(tensor([1], 'float64')), `${place}.dtype: expected float32 or int64`],
    ['a shape of another size', request({ weights: { data: [1], dtype: 'float32', shape: [2] } }), `${place}.shape`],
    ['a sparse tensor', request({ weights: { ...tensor([]).weights, sparse_crow_indices: [0] } }), 'expected a dense tensor'],
    ['an image', request({ chunks: [{ type: 'image', data: '' }] }), 'model_input.chunks[0].type: expected "encoded_text"'],
    ['a setting in words', request({ input: { loss_fn_config: { kind: 'high' } } }), 'loss_fn_config.kind: expected number'],
  ])('is refused: %s', (_, value, says) => {
    expect(() => passRequestFromJson(value, false)).toThrow(WireError);
    expect(() => passRequestFromJson(value, false)).toThrow(says);
  });

  it('has another name for its input without a gradient', () => {
    const { forward_backward_input, ...rest } = request() as { forward_backward_input: object };
    expect(passRequestFromJson({ ...rest, forward_input: forward_backward_input }, true).forwardOnly).toBe(true);
    expect(() => passRequestFromJson(request(), true)).toThrow('forward_input: expected object, found nothing');
  });

  it.each([Number.NaN, Number.POSITIVE_INFINITY])('is not written with %d in it, which would become null', (bad) => {
    const written: PassRequest = {
      modelId: 'm',
      seqId: 1,
      data: [{ tokens: Int32Array.of(1), inputs: { advantages: { dtype: 'float32', data: Float32Array.of(bad) } } }],
      loss: 'ppo',
      lossSettings: {},
      forwardOnly: false,
    };
    expect(() => passRequestToJson(written)).toThrow(
      `data[0].loss_fn_inputs.advantages.data[0]: expected a finite number, found ${bad}`,
    );
    expect(() => passRequestToJson({ ...written, data: [], lossSettings: { kl: bad } })).toThrow('loss_fn_config.kl');
  });
});

it('a pass result in JSON is refused with null for a metric or a number, and written with neither', () => {
  const body = { loss_fn_output_type: 'x', loss_fn_outputs: [], metrics: { 'loss:sum': null } };
  expect(() => passResultFromJson(body)).toThrow('metrics.loss:sum: expected number, found null');
  expect(() => passResultToJson({ outputType: 'x', outputs: [], metrics: { 'loss:sum': Number.NaN } })).toThrow(
    'metrics.loss:sum',
  );
  const outputs = [{ logprobs: { dtype: 'float32', data: Float32Array.of(Number.NEGATIVE_INFINITY) } }] as const;
  expect(() => passResultToJson({ outputType: 'x', outputs, metrics: {} })).toThrow('loss_fn_outputs[0].logprobs.data[0]');
});

describe('a sample call in JSON', () => {
  const call = (change: object = {}, params: object = {}): unknown => ({
    prompt: { chunks: [{ type: 'encoded_text', tokens: [1] }] },
    sampling_params: params,
    base_model: 'b',
    ...change,
  });

  it('has the wire’s defaults for what is left out', () => {
    expect(sampleCallFromJson(call())).toEqual({
      base_model: 'b',
      prompt: Int32Array.of(1),
      num_samples: 1,
      sampling_params: { temperature: 1, top_k: -1, top_p: 1, stop: [] },
      prompt_logprobs: false,
    });
  });

  it('stops at one text, at texts, or at ids', () => {
    const stopOf = (stop: unknown) => sampleCallFromJson(call({}, { stop })).sampling_params.stop;
    expect([stopOf('END'), stopOf(['a', 'b']), stopOf([2, 3])]).toEqual([['END'], ['a', 'b'], [2, 3]]);
  });

  it.each([
    [call({ base_model: null }), 'the body: expected a sampling_session_id, a base_model or a model_path, found none of them'],
    [call({ model_path: 'tinker://m/weights/a' }), 'found base_model and model_path'],
    [call({ sampling_session_id: 's' }), 'seq_id: expected an integer of 0 or more, found nothing'],
    [call({ num_samples: 0 }), 'num_samples: expected number to be >=1, found 0'],
    [call({}, { stop: ['a', 1] }), 'sampling_params.stop: expected ids or texts, found an array of 2'],
    [call({ topk_prompt_logprobs: 5 }), 'topk_prompt_logprobs: expected nothing: this is not supported, found 5'],
    [call({ topk_sample_logprobs: 1 }), 'topk_sample_logprobs'],
    [call({ target_prompt_logprobs: {} }), 'target_prompt_logprobs'],
    [call({ prompt_alt_tokens_k: 1 }), 'prompt_alt_tokens_k'],
    [call({ prompt_logprobs_last_n: 1 }), 'prompt_logprobs_last_n'],
    [call({ record_stability_info: true }), 'record_stability_info'],
  ])('is refused (%#): %s', (value, says) => {
    expect(() => sampleCallFromJson(value)).toThrow(WireError);
    expect(() => sampleCallFromJson(value)).toThrow(says);
  });
});

describe('a sample reply in JSON', () => {
  const reply = (change: object) => ({
    sequences: [{ stop_reason: 'stop', tokens: [1, 2], logprobs: [-1, -2], ...change }],
  });

  it('has null where nothing predicts a token of the prompt', () => {
    const read = sampleReplyFromJson({ sequences: [], prompt_logprobs: [null, -1] });
    expect(read.promptLogprobs).toEqual(Float32Array.of(Number.NaN, -1));
    expect(sampleReplyToJson(read)['prompt_logprobs']).toEqual([null, -1]);
  });

  it.each([
    [{ logprobs: [-1, null] }, 'sequences[0].logprobs[1]: expected a number that fits float32, found null'],
    [{ logprobs: [-1] }, 'sequences[0].logprobs: expected one for each of 2 tokens, found 1'],
    [{ stop_reason: 'eos' }, 'sequences[0].stop_reason: expected one of "stop"|"length", found "eos"'],
    [{ tokens: [1, -0.5] }, 'sequences[0].tokens[1]: expected an integer of 32 bits, found -0.5'],
  ])('is refused (%#): %s', (change, says) => {
    expect(() => sampleReplyFromJson(reply(change))).toThrow(says);
  });

  it('is not written with an infinite log-probability', () => {
    const bad = Float32Array.of(Number.NEGATIVE_INFINITY);
    const sequences = [{ stopReason: 'stop', tokens: Int32Array.of(1), logprobs: bad }] as const;
    expect(() => sampleReplyToJson({ sequences })).toThrow('sequences[0].logprobs[0]: expected a finite number, found -Infinity');
    expect(() => sampleReplyToJson({ sequences: [], promptLogprobs: bad })).toThrow('prompt_logprobs[0]');
  });
});
