/** What the flow routes work with, and what whoever mounts them brings. */
import type { GraderRunner } from '../core/contracts.ts';
import type { Task } from '../core/types.ts';
import type { Gateway } from '../gateway/gateway.ts';
import type { HttpRequest } from '../http/message.ts';
import type { GroupPool } from '../rollout/group-pool.ts';
import type { Renderer } from '../tokens/renderer.ts';
import type { FlowTrajectory } from './flow-trajectory.ts';
import type { GenerationIds } from './generation-ids.ts';
import type { TableParts, TrajectoryTable } from './trajectory-table.ts';

export interface GradingParts {
  readonly grader?: GraderRunner | undefined;
  /** With its answer, which goes to the grader and nowhere else. */
  taskOf?(trajectory: FlowTrajectory): Task | undefined;
}

export interface FlowOptions extends Omit<TableParts, 'gateway' | 'grade'>, GradingParts {
  readonly renderer: Renderer;
  readonly modelName: string;
  /** Where groups are handed out to whoever trains somewhere else. */
  readonly pool?: GroupPool | undefined;
  /** Of the engine. */
  policyVersion(): number;
}

/** A call whose body was read. */
export type ReadCall = HttpRequest & { readonly text: string };

export interface FlowParts extends FlowOptions {
  readonly gateway: Gateway;
  readonly table: TrajectoryTable;
  readonly ids: GenerationIds;
}
