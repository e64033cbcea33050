import { describe, expect, it } from 'vitest';
import {
  adamParamsFromWire,
  adamParamsToWire,
  clientConfigReply,
  createModelRequest,
  failedReply,
  optimStepRequest,
  readAs,
  trainingRunsReply,
} from './verbs.ts';
import { WireError } from './wire-error.ts';

describe('small bodies', () => {
  it('ignore keys of other versions, and take null for what may be left out', () => {
    const body = { session_id: 's', model_seq_id: 0, base_model: 'b', lora_config: null, of_next_year: 1 };
    expect(readAs(createModelRequest, body)).toEqual({ session_id: 's', model_seq_id: 0, base_model: 'b', lora_config: null });
  });

  it('have the hosted service’s defaults', () => {
    expect(readAs(clientConfigReply, { pjwt_auth_enabled: false })).toMatchObject({
      proto_compress_fwdbwd: false,
      fwdbwd_max_chunk_len: 1024,
      fwdbwd_max_chunk_bytes_count: 5_000_000,
    });
    expect(adamParamsFromWire(readAs(optimStepRequest, { model_id: 'm', adam_params: {} }).adam_params)).toEqual({
      learningRate: 1e-4,
      beta1: 0.9,
      beta2: 0.95,
      eps: 1e-12,
      weightDecay: 0,
      gradClipNorm: 0,
    });
  });

  it('keep each of the optimizer’s numbers in its place', () => {
    const params = { learningRate: 1, beta1: 2, beta2: 3, eps: 4, weightDecay: 5, gradClipNorm: 6 };
    expect(adamParamsFromWire(adamParamsToWire(params))).toEqual(params);
    const wire = { learning_rate: 1, beta1: 2, beta2: 3, eps: 4, weight_decay: 5, grad_clip_norm: 6 };
    expect(adamParamsToWire(params)).toEqual(wire);
  });

  it('say where they are wrong, what was expected and what was found', () => {
    const cases: [() => unknown, string][] = [
      [
        () => readAs(optimStepRequest, { model_id: 'm', adam_params: { beta1: 'x' } }),
        'adam_params.beta1: expected number, found "x"',
      ],
      [
        () => readAs(optimStepRequest, { model_id: 'm', optimizer_params: { type: 'dimuon' } }),
        'adam_params: expected object, found nothing',
      ],
      [
        () => readAs(optimStepRequest, { model_id: 'm', seq_id: 0, adam_params: {} }),
        'seq_id: expected number to be >=1, found 0',
      ],
      [() => readAs(optimStepRequest, 'text'), 'the body: expected object, found "text"'],
      [
        () => readAs(trainingRunsReply, { training_runs: [{}], cursor: {} }),
        'training_runs.0.training_run_id: expected string, found nothing',
      ],
    ];
    for (const [read, says] of cases) {
      expect(read).toThrow(WireError);
      expect(read).toThrow(says);
    }
  });

  it('know a failure of a category that nobody knows as unknown', () => {
    expect(readAs(failedReply, { error: 'e', category: 'user' }).category).toBe('user');
    expect(readAs(failedReply, { error: 'e', category: 'cosmic' }).category).toBe('unknown');
  });
});
