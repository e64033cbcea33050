/** A step through a policy that somebody may lose: whatever is lost when, what is served is what was committed. */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { randomTrajectory } from '../../packages/testing/src/trajectories.ts';
import { folderOfEach } from '../../test/fixtures/folder.ts';
import type { Store } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Engine, Trainer } from '../core/policy.ts';
import { savedSteps } from '../engines/checkpoint.ts';
import { createRunDirectory, type RunDirectory } from '../run/directory.ts';
import { Recovery } from '../run/recovery.ts';
import { trainSettings } from '../settings/check-settings.ts';
import { openSqliteStore } from '../store/sqlite.ts';
import { AgreementBound } from './agreement.ts';
import { restorePolicy } from './resume.ts';
import { type StepLog, takeStep } from './step.ts';

const at = folderOfEach();
let directory: RunDirectory;

beforeEach(async () => {
  directory = await createRunDirectory(at('run'), {});
  await writeFile(at('weights'), '0');
  await writeFile(at('config.json'), '{}');
});
afterEach(() => directory[Symbol.asyncDispose]());

const SAMPLING = { temperature: 1, topP: 1, topK: 0, maxTokens: 1 };
const REQUEST = { promptIds: Int32Array.of(1), sampling: SAMPLING, stopIds: [], seed: 1 };

/** Its weights are a number that every step makes one larger. When lost, every verb but `load` says so. */
class CountingPolicy implements Trainer, Engine {
  readonly vocabSize = 10;
  readonly contextLength = 10;
  weights: number | undefined = 0;
  served = { version: 0, weights: 0 };
  isServing = true;
  /** Called after a verb's work and before its answer. */
  after: (verb: string) => void = () => {};

  lose(): void {
    this.weights = undefined;
    this.isServing = false;
  }

  get policyVersion(): number {
    return this.served.version;
  }

  async sample() {
    await Promise.resolve();
    if (!this.isServing) throw lost('asample');
    const sampled = { ids: Int32Array.of(this.served.weights), logprobs: Float32Array.of(-1) };
    return { ...sampled, stopReason: 'length' as const, policyVersion: this.served.version };
  }

  async forward(): Promise<Float32Array[]> {
    return [];
  }

  forwardBackward() {
    return this.#verb('forwardBackward', async () => ({ loss: 1, metrics: {}, logprobs: [], trainedTokens: 1 }));
  }

  optimStep() {
    return this.#verb('optimStep', async (weights) => {
      this.weights = weights + 1;
      return { gradNorm: 1 };
    });
  }

  publish(version: number): Promise<void> {
    return this.#verb('publish', async (weights) => {
      this.served = { version, weights };
      this.isServing = true;
    });
  }

  save(dir: string): Promise<void> {
    return this.#verb('save', (weights) => writeFile(join(dir, 'weights'), `${weights}`));
  }

  async load(dir: string): Promise<void> {
    this.weights = Number(await readFile(join(dir, 'weights'), 'utf8'));
  }

  async forget(): Promise<void> {}

  async freezeReference(): Promise<void> {}

  async #verb<T>(name: string, work: (weights: number) => Promise<T>): Promise<T> {
    await Promise.resolve();
    if (this.weights === undefined) throw lost(name);
    const result = await work(this.weights);
    this.after(name);
    return result;
  }
}

function lost(verb: string): TrainyardError {
  return new TrainyardError('POLICY_LOST', `the server answered 404 to ${verb}`);
}

function logOf(policy: CountingPolicy, store: Store): { readonly log: StepLog; readonly recovery: Recovery } {
  const recovery = new Recovery(
    () => {},
    async () => {},
  );
  const settings = { ...trainSettings({ entry: 'agent.ts', steps: 5 }), model: at() };
  const log: StepLog = {
    ...{ trainer: policy, work: recovery, directory, store, settings, identity: 'this run' },
    ...{ bound: new AgreementBound(), warn: () => {} },
  };
  recovery.restore = () => restorePolicy(log);
  return { log, recovery };
}

const next = {
  means: { parts: { format: 0.5 }, metrics: { loss: 3 } },
  step: 1,
  batch: { samples: [], rolloutIds: ['r1'], trainedTokens: 1 },
  learningRate: 0.1,
  groups: { next: 2, pending: [] },
  best: undefined,
};

it.each(['optimStep', 'save', 'publish'])(
  'serves what it committed when a rollout running ahead notices a loss right after %s',
  async (verb) => {
    await using store = await openSqliteStore(directory.storePath);
    await store.append(randomTrajectory(1, { rolloutId: 'r1' }));
    const policy = new CountingPolicy();
    const { log, recovery } = logOf(policy, store);
    const engine = recovery.around(policy);
    let ahead: Promise<unknown> | undefined;
    policy.after = (name) => {
      if (name !== verb || ahead !== undefined) return;
      policy.lose();
      ahead = engine.sample(REQUEST);
    };
    await takeStep(log, next, () => {});
    await ahead;
    expect(policy.served).toEqual({ version: 1, weights: 1 });
    expect(policy.weights).toBe(1);
    expect(await savedSteps(directory.checkpoints)).toEqual([1]);
    // A grader's metric of the same name as the trainer's is another number.
    const metrics = { 'parts.format': 0.5, 'metrics.loss': 3, learningRate: 0.1 };
    expect(await store.manifests()).toMatchObject([{ metrics }]);
  },
);
