/**
 * What `Grader.grade` gets: the label, and every named conversation of the rollout as a sample that wants a reward.
 *
 * Samples are the gateway's own record, in the shape of Chat Completions messages whatever framework the agent is written in.
 */
import type { GraderInput } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Json, LimitName } from '../core/types.ts';
import type { Metadata } from './agent-workflow-context.ts';
import type { GraderConfig } from './config.ts';
import { RolloutSample } from './rollout-sample.ts';

export class GraderContext<TConfig = GraderConfig> {
  /** The row's reference answer; null where it has none. */
  readonly label: Json | null;
  /** By the name of the agent or session; `default` where the workflow called the model without one. */
  readonly samples: Readonly<Record<string, RolloutSample>>;
  /** The same as the workflow's. */
  readonly metadata: Metadata | null;
  readonly artifactsDir: string | null;
  readonly projectPath: string;
  readonly config: TConfig | null;
  /** The limit that cut the rollout short, if one did. */
  readonly truncated: LimitName | null;

  constructor({ task, threads, artifactsDir, truncated }: GraderInput, config: TConfig | null = null) {
    this.label = task.answer ?? null;
    this.metadata = (task.metadata ?? null) as Metadata | null;
    this.artifactsDir = artifactsDir;
    this.projectPath = process.cwd();
    this.config = config;
    this.truncated = truncated ?? null;
    const label = this.label;
    this.samples = Object.fromEntries(
      Object.entries(threads).map(([id, messages]) => [id, new RolloutSample({ id, messages, label })]),
    );
  }

  getSamples(): Readonly<Record<string, RolloutSample>> {
    return this.samples;
  }

  setSampleReward(sampleId: string, reward: number): void {
    const sample = Object.hasOwn(this.samples, sampleId) ? this.samples[sampleId] : undefined;
    if (sample === undefined) {
      const names = Object.keys(this.samples).join(', ') || 'none';
      throw new TrainyardError('GRADER_FAILED', `Sample ${sampleId} not found; the samples are ${names}`);
    }
    sample.reward = reward;
  }

  /** For a rollout with a single sample. */
  setReward(reward: number): void {
    const [only, ...others] = Object.values(this.samples);
    if (only === undefined) throw new TrainyardError('GRADER_FAILED', 'GraderContext has no sample to reward');
    if (others.length > 0) {
      throw new TrainyardError('GRADER_FAILED', `setReward is for one sample, and there are ${others.length + 1}`, {
        hint: 'name them: setSampleReward(id, reward)',
      });
    }
    only.reward = reward;
  }
}
