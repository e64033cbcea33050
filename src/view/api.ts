/**
 * What the page of `trainyard view` and its server say to each other. Types only: both sides are written against this file. Everything is
 * JSON; the server answers errors as `{ error: { code, message, hint? } }`. Each request but the first has the key, as `authorization: Bearer`.
 * In an exported HTML file there is no server: the same answers are embedded, by their path.
 *
 * POST /api/session                                   { key }, for a link's token as the key; the token then works no more
 * GET  /api/runs                                      RunInfo[]
 * GET  /api/runs/:run/events                          RunEvent[], without progress
 * GET  /api/runs/:run/rollouts?filter&sort&from&count RolloutPage
 * GET  /api/runs/:run/rollouts/:rollout               RolloutView
 * GET  /api/runs/:run/rollouts/:rollout/tokens        TokenView
 * GET  /api/runs/:run/groups/:group                   GroupView
 * GET  /api/diff?a=:run&b=:run                        Comparison of evaluation/compare.ts
 * GET  /api/changes                                   server-sent events: a Change each
 * POST /api/runs/:run/marks                           MarkRequest → CurationLine[] of runs/inspect.ts
 * POST /api/runs/:run/dataset                         DatasetRequest → the file, as a download
 */
import type { RunEvent } from '../core/events.ts';
import type { TurnSummary } from '../core/turns.ts';
import type { LogLine, Message, Purpose, Tool, Trajectory, UnansweredCall } from '../core/types.ts';
import type { DataRequest } from '../export/export-data.ts';
import type { Rewritten, RolloutRow } from '../run/inspect.ts';

export interface RunInfo {
  /** Its number among the runs that are shown, as text: `:run` in paths. */
  readonly id: string;
  /** As given on the command line. */
  readonly path: string;
  readonly kind: 'train' | 'eval' | 'sft' | 'serve';
  /** `running`: a process holds its lock. `stopped`: none does, and it neither ended nor failed. */
  readonly state: 'running' | 'done' | 'failed' | 'stopped';
  readonly entry: string | null;
  readonly model: string | null;
  readonly startedAt: number | null;
  readonly rollouts: number;
  readonly steps: number;
  /** Why it cannot be shown; the other numbers are then 0. */
  readonly problem?: string;
}

/** Sort keys of the list; a leading minus sorts downwards. Default: `-seq`, the latest first. */
export type { SortKey } from '../core/listing.ts';

export interface RolloutPage {
  /** Rollouts of the run, read so far, and of those the ones that pass the filter. */
  readonly total: number;
  readonly read: number;
  readonly matching: number;
  /** Of the ones that pass the filter. */
  readonly meanReward: number | null;
  readonly successes: number;
  readonly from: number;
  readonly rows: readonly RolloutRow[];
}

export interface TurnView extends TurnSummary {
  /** Messages that are new in this turn's prompt. */
  readonly prompt: readonly Message[];
  readonly rewritten: Rewritten | null;
  readonly tools: readonly Tool[];
  /** Null if the turn is not excluded. */
  readonly excluded: string | null;
  /** What the turn earned, where the grader or the workflow says so for parts of the rollout. */
  readonly reward: number | null;
}

export interface RolloutView extends Pick<Trajectory, 'outcome' | 'grade' | 'output' | 'metadata' | 'metrics'> {
  readonly row: RolloutRow;
  readonly turns: readonly TurnView[];
  readonly unanswered: readonly UnansweredCall[];
  readonly logs: readonly LogLine[];
  readonly startedAt: number;
}

/** A training row: the turns of one chain, as `stitch` joins them. Arrays have one entry for each token. */
export interface TokenRow {
  /** Bytes of each token as text; a token that ends within a character shows as its bytes, such as <0xE2>. */
  readonly pieces: readonly string[];
  readonly ids: readonly number[];
  /** 1 where the policy sampled the token by itself. */
  readonly mask: readonly number[];
  /** As the engine said when it sampled; 0 where the mask is 0. */
  readonly logprobs: readonly number[];
  /** Null if the group has no signal, or advantages depend on a whole batch. */
  readonly advantages: readonly number[] | null;
  readonly versions: readonly number[];
  /** As the trainer said in the step that trained it. Null if no step did, or it was not kept. */
  readonly trainerLogprobs: readonly number[] | null;
  readonly temperature: number;
  /** Which tokens a turn sampled: from `start` up to, not including, `end`. */
  readonly turns: readonly { readonly index: number; readonly start: number; readonly end: number }[];
}

export interface TokenView {
  readonly rows: readonly TokenRow[];
  /** Why there are no rows, or no pieces (then they are the ids). */
  readonly note: string | null;
}

export interface GroupView {
  readonly groupId: string;
  readonly taskId: string;
  readonly purpose: Purpose;
  /** Highest reward first, rollouts without a reward last. */
  readonly rollouts: readonly RolloutView[];
}

export type { CurationRequest as MarkRequest } from '../run/inspect.ts';

export interface DatasetRequest extends Pick<DataRequest, 'format' | 'only'> {
  readonly filter: string;
}

/**
 * Something new in a run: events since the last change, and how many rollouts it has now. `restart`: read everything again;
 * it is the first change of each run for whoever begins to listen. */
export interface Change {
  readonly run: string;
  readonly state: RunInfo['state'];
  readonly events: readonly RunEvent[];
  /** How many events of the run come before these. */
  readonly from: number;
  readonly rollouts: number;
  readonly restart?: true;
}

/** In an exported file, as JSON in the element `trainyard-export`: the answers by path and query, and when they were taken. */
export interface ExportedView {
  readonly takenAt: number;
  readonly answers: Readonly<Record<string, unknown>>;
}
