/**
 * What a run samples and trains: in this process (`embedded`), or on a server of the Tinker API (`tinker`), of whose model the local folder
 * gives only tokenizer and chat template. The rest of the run cannot tell which.
 */
import { hash } from 'node:crypto';
import type { Downtime } from '../core/async.ts';
import type { Grader, GraderInput, GraderModel, GraderRunner, SessionHost, SessionSpec } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import type { Engine, Trainer } from '../core/policy.ts';
import type { Grade, Limits, SamplingSettings, Turn } from '../core/types.ts';
import { EmbeddedModel } from '../nn/embedded-model.ts';
import type { KernelVariant } from '../nn/wasm.ts';
import type { RunSettings } from './check-settings.ts';

export interface Policy extends AsyncDisposable {
  /** For people: which model, and where. */
  readonly name: string;
  /** Its address, where it is at a server. */
  readonly server?: string;
  readonly engine: Engine;
  readonly trainer: Trainer;
}

export interface PolicyOptions {
  readonly warn: Warn;
  readonly stop: AbortSignal;
  /** Runs while the policy's server is away. */
  readonly downtime?: Downtime | undefined;
  /** By default the fastest that the machine has. */
  readonly kernels?: KernelVariant | undefined;
}

export type PolicySettings = Pick<RunSettings, 'engine' | 'model' | 'threads' | 'seed' | 'baseModel' | 'baseURL' | 'loraRank'>;

/** Serves the weights of `settings.model` as version 0. `words` is the size of the folder's tokenizer. */
export async function openPolicy(settings: PolicySettings, words: number, options: PolicyOptions): Promise<Policy> {
  if (settings.engine === 'tinker') {
    const { openTinkerPolicy } = await import('../tinker/client/tinker-policy.ts');
    return await openTinkerPolicy(settings, words, options);
  }
  const { model: dir, threads } = settings;
  const model = await EmbeddedModel.open({ dir, threads, variant: options.kernels });
  try {
    checkVocabulary(words, model.vocabSize);
  } catch (thrown) {
    await model.close();
    throw thrown;
  }
  return { name: dir, engine: model, trainer: model, [Symbol.asyncDispose]: () => model.close() };
}

export function checkVocabulary(words: number, vocabSize: number): void {
  if (words <= vocabSize) return;
  throw new TrainyardError('MODEL_INVALID', `the tokenizer has ${words} tokens, the model ${vocabSize}`, {
    hint: 'tokenizer.json and config.json must be of the same model',
  });
}

/** Of one grading that asks the policy. */
const JUDGE_LIMITS: Limits = { turns: 64, tokens: 65_536, deadlineMs: 3_600_000 };
const JUDGE_SAMPLING: SamplingSettings = { temperature: 0, topP: 1, topK: 0, maxTokens: 4_096 };
const JUDGE = 'judge';

export interface PolicyJudgeParts {
  readonly sessions: SessionHost;
  readonly seed: number;
  readonly signal: AbortSignal;
}

/**
 * The run's own policy as a judge: for graders that say `asksPolicy`, each grading holds a session of its own at the gateway while it
 * lasts; other graders are returned as they are.
 *
 * What the policy says there is no rollout: it is neither stored nor trained, and does not count as sampled. Each answer comes from one
 * policy version; which one judged last, and how many did, are metrics of the reward, since weights may change within a grading.
 */
export function withPolicy(runner: GraderRunner, grader: Grader, parts: PolicyJudgeParts): GraderRunner {
  if (!grader.asksPolicy) return runner;
  const open = new Set<string>();
  const grade = async (input: GraderInput): Promise<Grade> => {
    const name = freeName(input, open);
    open.add(name);
    const session = parts.sessions.open(judgeSession(name, input, parts));
    try {
      const { baseURL, apiKey, name: model } = session.model(JUDGE);
      const asked: GraderModel = { baseURL, apiKey, name: model };
      return withVersions(await runner.grade(input, asked), session.turns);
    } finally {
      session.seal();
      open.delete(name);
    }
  };
  return { killable: runner.killable, grade, [Symbol.asyncDispose]: () => runner[Symbol.asyncDispose]() };
}

/** By what is graded, not by when: seeds are drawn from it, and the same rollout is to be judged with the same ones. */
function freeName({ task, messages, output = null }: GraderInput, open: ReadonlySet<string>): string {
  const digest = hash('sha256', JSON.stringify([task.id, messages, output]), 'hex').slice(0, 24);
  let number = 1;
  while (open.has(`${JUDGE}-${digest}-${number}`)) number++;
  return `${JUDGE}-${digest}-${number}`;
}

function judgeSession(name: string, { task }: GraderInput, { seed, signal }: PolicyJudgeParts): SessionSpec {
  return {
    identity: { rolloutId: name, groupId: name, taskId: task.id, purpose: 'eval' },
    roles: { [JUDGE]: { trainable: false } },
    othersTrainable: false,
    sampling: JUDGE_SAMPLING,
    limits: JUDGE_LIMITS,
    seed,
    signal,
  };
}

function withVersions(grade: Grade, turns: readonly Turn[]): Grade {
  if (grade.kind !== 'graded' || turns.length === 0) return grade;
  const versions = new Set(turns.map((turn) => turn.policyVersion));
  const metrics = { ...grade.reward.metrics, 'judge.version': turns.at(-1)!.policyVersion, 'judge.versions': versions.size };
  return { kind: 'graded', reward: { ...grade.reward, metrics } };
}
