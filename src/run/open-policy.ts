/**
 * Opens the policy that a run samples and trains: in this process (`embedded`), or on a Tinker API server (`tinker`), for which the local
 * folder provides only tokenizer and chat template. The rest of the run cannot tell them apart.
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
  readonly name: string;
  /** Address of the server. Undefined for the embedded policy. */
  readonly server?: string;
  readonly engine: Engine;
  readonly trainer: Trainer;
}

export interface PolicyOptions {
  readonly warn: Warn;
  readonly stop: AbortSignal;
  readonly downtime?: Downtime | undefined;
  /** Default: the fastest that the machine supports. */
  readonly kernels?: KernelVariant | undefined;
}

export type PolicySettings = Pick<RunSettings, 'engine' | 'model' | 'threads' | 'seed' | 'baseModel' | 'baseURL' | 'loraRank'>;

/** Serves the weights of `settings.model` as version 0. `words`: size of the folder's tokenizer. */
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

/** For one grading that asks the policy. */
const JUDGE_LIMITS: Limits = { turns: 64, tokens: 65_536, deadlineMs: 3_600_000 };
const JUDGE_SAMPLING: SamplingSettings = { temperature: 0, topP: 1, topK: 0, maxTokens: 4_096 };
const JUDGE = 'judge';

export interface PolicyJudgeParts {
  readonly sessions: SessionHost;
  readonly seed: number;
  readonly signal: AbortSignal;
}

/**
 * Lets graders with `asksPolicy` use the run's policy as a judge, through a gateway session per grading; other graders are returned
 * unchanged. The judge's responses are not rollouts: they are neither stored nor trained, and do not count as sampled. Weights may change
 * during a grading, so the reward's metrics record the last policy version that judged and how many did.
 */
export function withPolicy(runner: GraderRunner, grader: Grader, parts: PolicyJudgeParts): GraderRunner {
  if (!grader.asksPolicy) return runner;
  const open = new Set<string>();
  const grade: GraderRunner['grade'] = async (input, _, print) => {
    const name = freeName(input, open);
    open.add(name);
    const session = parts.sessions.open(judgeSession(name, input, parts));
    try {
      const { baseURL, apiKey, name: model } = session.model(JUDGE);
      const asked: GraderModel = { baseURL, apiKey, name: model };
      return withVersions(await runner.grade(input, asked, print), session.turns);
    } finally {
      session.seal();
      open.delete(name);
    }
  };
  return { killable: runner.killable, grade, [Symbol.asyncDispose]: () => runner[Symbol.asyncDispose]() };
}

/** Derived from the graded content, not from time: seeds depend on it, and judging the same rollout again must use the same seeds. */
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
