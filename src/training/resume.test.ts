/** What a run does when the server of the policy forgets the weights in training. */
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { Downtime } from '../core/async.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Engine, SampleRequest, SampleResult } from '../core/policy.ts';
import { Recovery } from '../run/recovery.ts';

const SAMPLING = { temperature: 1, topP: 1, topK: 0, maxTokens: 1 };
const REQUEST: SampleRequest = { promptIds: Int32Array.of(1), sampling: SAMPLING, stopIds: [], seed: 1 };
const RESULT: SampleResult = { ids: Int32Array.of(2), logprobs: Float32Array.of(-1), stopReason: 'length', policyVersion: 3 };
const lost = (): TrainyardError => new TrainyardError('POLICY_LOST', 'the server does not know model m1');

/** A policy that somebody may lose; whatever asks for it then is told so until it is put back. */
function forgetful() {
  const log: string[] = [];
  const state = { has: true, restoring: 0, failures: [] as unknown[], thrown: undefined as unknown };
  const engine: Engine = {
    vocabSize: 10,
    contextLength: 20,
    policyVersion: 3,
    sample: async () => {
      await Promise.resolve();
      if (!state.has || state.thrown !== undefined) throw state.thrown ?? lost();
      return RESULT;
    },
  };
  const restore = async (): Promise<void> => {
    log.push('restore');
    state.restoring++;
    await sleep(5);
    const failure = state.failures.shift();
    if (failure !== undefined) throw failure;
    state.has = true;
    log.push('restored');
  };
  const downtime = new Downtime();
  const recovery = new Recovery((code) => log.push(code), restore, downtime);
  return { log, state, recovery, downtime, engine: recovery.around(engine) };
}

describe('recovery', () => {
  it('is one for all samples that notice the loss, and each of them is answered', async () => {
    const { engine, state, log } = forgetful();
    state.has = false;
    const results = await Promise.all(Array.from({ length: 20 }, () => engine.sample(REQUEST)));
    expect(results).toEqual(Array.from({ length: 20 }, () => RESULT));
    expect(log).toEqual(['POLICY_LOST', 'restore', 'restored', 'POLICY_RESTORED']);
  });

  it('begins a step again from its start, and never overlaps with it', async () => {
    const { engine, recovery, state, log } = forgetful();
    let tries = 0;
    const step = recovery.step(async () => {
      log.push('gradient');
      await sleep(5);
      if (++tries === 1) state.has = false;
      await sleep(5);
      if (!state.has) throw lost();
      log.push('update');
      return tries;
    });
    await sleep(7);
    const sample = engine.sample(REQUEST);
    expect(await step).toBe(2);
    expect(await sample).toEqual(RESULT);
    expect(log.filter((line) => !line.startsWith('POLICY'))).toEqual(['gradient', 'restore', 'restored', 'gradient', 'update']);
  });

  it('is time that the policy was away', async () => {
    const { engine, state, downtime } = forgetful();
    state.has = false;
    state.failures.push(lost());
    expect(await engine.sample(REQUEST)).toEqual(RESULT);
    expect(state.restoring, 'lost again while it was put back').toBe(2);
    const away = downtime.milliseconds;
    expect(away).toBeGreaterThan(5);
    await sleep(10);
    expect(downtime.milliseconds).toBe(away);
  });

  it('gives up on a server that keeps nothing, and ends the run with its error', async () => {
    const { engine, recovery, state } = forgetful();
    state.has = false;
    state.failures.push(lost(), lost(), lost(), lost());
    await expect(engine.sample(REQUEST)).rejects.toMatchObject({ code: 'POLICY_LOST' });
    expect(state.restoring).toBe(3);
    expect(recovery.fatal.reason).toMatchObject({ code: 'POLICY_LOST' });
  });

  it('is tried and told of once where what was saved is gone, however many samples wait for it', async () => {
    const { engine, recovery, state, log } = forgetful();
    const refused = new TrainyardError('POLICY_REFUSED', 'there is nothing saved at tinker://m1/weights/w1');
    state.has = false;
    state.failures.push(refused, refused, refused);
    const results = await Promise.allSettled(Array.from({ length: 3 }, () => engine.sample(REQUEST)));
    expect(results).toEqual(Array.from({ length: 3 }, () => ({ status: 'rejected', reason: refused })));
    expect(log).toEqual(['POLICY_LOST', 'restore']);
    expect(recovery.fatal.reason).toBe(refused);
  });

  it('forgives losses between which a step was taken', async () => {
    const { engine, recovery, state } = forgetful();
    for (let loss = 0; loss < 6; loss++) {
      state.has = false;
      await engine.sample(REQUEST);
      await recovery.step(async () => undefined);
    }
    expect(state.restoring).toBe(6);
  });

  it('ends the run when the server is out of reach, and not for what one rollout did', async () => {
    const unreachable = new TrainyardError('POLICY_UNREACHABLE', 'connection refused');
    const overflow = new TrainyardError('CONTEXT_OVERFLOW', 'too long');
    for (const [thrown, isFatal] of [
      [unreachable, true],
      [overflow, false],
    ] as const) {
      const { recovery, state, engine } = forgetful();
      state.thrown = thrown;
      await expect(engine.sample(REQUEST)).rejects.toBe(thrown);
      expect(recovery.fatal.aborted).toBe(isFatal);
    }
  });
});
