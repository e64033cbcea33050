/**
 * The routes of the agent-flow protocol as data: method, path, who may. docs/reference/agent-flow.md publishes them; a test keeps the two
 * equal. Paths that begin with `{trajectory}/{prompt}/v1` are those of a base URL; below it the routes of the model are served too.
 */
import type { Capability } from '../gateway/wire-protocol.ts';

export type FlowAction = 'generate' | 'submit' | 'reward' | 'init' | 'register' | 'complete' | 'steps' | 'fetch' | 'pool';

export interface FlowRoute {
  readonly method: 'GET' | 'POST';
  readonly path: string;
  readonly does: FlowAction;
  /** Absent: whoever may use these routes. */
  readonly may?: readonly Capability[];
}

export const FLOW_CAPABILITIES: readonly Capability[] = ['flow', 'admin'];
const BASE = '{trajectory}/{prompt}/v1';

export const FLOW_ROUTES: readonly FlowRoute[] = [
  { method: 'POST', path: 'generate', does: 'generate' },
  { method: 'POST', path: 'submit_steps', does: 'submit' },
  { method: 'POST', path: 'compute_reward', does: 'reward' },
  { method: 'POST', path: 'init_trajectory', does: 'init' },
  { method: 'POST', path: `${BASE}/register_trajectory`, does: 'register' },
  { method: 'POST', path: `${BASE}/complete_trajectory`, does: 'complete' },
  { method: 'GET', path: `${BASE}/steps`, does: 'steps' },
  { method: 'POST', path: 'fetch_batch', does: 'fetch', may: ['admin'] },
  { method: 'GET', path: 'pool', does: 'pool', may: ['admin'] },
];

/** Where a path leads. */
export interface FlowPlace {
  /** Absent: a route of the model, below a base URL. */
  readonly route?: FlowRoute;
  /** As they stand in the path, percent-encoded. */
  readonly trajectory?: string;
  readonly prompt?: string;
  /** What follows the base. */
  readonly rest: string;
}

const BASED = /^\/([^/]+)\/([^/]+)\/v1\/(.+)$/;

export function flowPlaceOf(path: string): FlowPlace | undefined {
  const top = FLOW_ROUTES.find((route) => `/${route.path}` === path);
  if (top !== undefined) return { route: top, rest: top.path };
  const [, trajectory, prompt, rest] = BASED.exec(path) ?? [];
  // `/r/<rollout>/v1` is the gateway's own.
  if (trajectory === undefined || prompt === undefined || rest === undefined || trajectory === 'r') return undefined;
  const route = FLOW_ROUTES.find((one) => one.path === `${BASE}/${rest}`);
  return { trajectory, prompt, rest, ...(route === undefined ? {} : { route }) };
}
