/**
 * The run's own policy as a judge: for graders that say `asksPolicy`, each grading holds a session of its own at the gateway while it lasts.
 *
 * What the policy says there is no rollout: it is not stored, not trained, and does not count as sampled by one. Each answer comes from
 * one policy version, as all turns do. Which version judged is a metric of the reward, and so is how many there were: weights may change
 * between two questions of one grading.
 */
import { hash } from 'node:crypto';
import type { Grader, GraderInput, GraderModel, GraderRunner, SessionHost, SessionSpec } from '../core/contracts.ts';
import type { Grade, Limits, SamplingSettings, Turn } from '../core/types.ts';

/** Of one grading. */
const LIMITS: Limits = { turns: 64, tokens: 65_536, deadlineMs: 3_600_000 };
const SAMPLING: SamplingSettings = { temperature: 0, topP: 1, topK: 0, maxTokens: 4_096 };
const ROLE = 'judge';

export interface PolicyJudgeParts {
  readonly sessions: SessionHost;
  readonly seed: number;
  readonly signal: AbortSignal;
}

/** The runner itself where its grader does not ask. */
export function withPolicy(runner: GraderRunner, grader: Grader, parts: PolicyJudgeParts): GraderRunner {
  if (!grader.asksPolicy) return runner;
  const open = new Set<string>();
  const grade = async (input: GraderInput): Promise<Grade> => {
    const name = freeName(input, open);
    open.add(name);
    const session = parts.sessions.open(sessionOf(name, input, parts));
    try {
      const { baseURL, apiKey, name: model } = session.model(ROLE);
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
  while (open.has(`${ROLE}-${digest}-${number}`)) number++;
  return `${ROLE}-${digest}-${number}`;
}

function sessionOf(name: string, { task }: GraderInput, { seed, signal }: PolicyJudgeParts): SessionSpec {
  return {
    identity: { rolloutId: name, groupId: name, taskId: task.id, purpose: 'eval' },
    roles: { [ROLE]: { trainable: false } },
    othersTrainable: false,
    sampling: SAMPLING,
    limits: LIMITS,
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
