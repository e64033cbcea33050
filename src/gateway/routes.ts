/**
 * The routes of the gateway as data: method, path, who may, what it does. docs/reference/wire-protocol.md publishes them; a test keeps
 * the two equal.
 *
 * Routes of the model are served below `/`, `/v1` and either of them below `/r/<rollout>`; also with a second `/v1`, since some
 * clients add their own to a base URL that has one. No route looks at the query.
 */
import { type RouteMatch, Router } from '../http/router.ts';
import type { Capability } from './keys.ts';

export type Action = 'ask' | 'count_tokens' | 'models' | 'model' | 'health' | 'ready' | 'list' | 'show' | 'open' | 'seal';

export interface Route {
  readonly method: 'GET' | 'POST' | 'DELETE';
  /** Without the prefixes. */
  readonly path: string;
  /** Whether it is a route of the model, with its prefixes. */
  readonly model: boolean;
  /** Empty: no key is needed. */
  readonly who: readonly Capability[];
  readonly does: Action;
}

const CALLERS = ['agent', 'flow'] as const;
const READERS = ['viewer', 'admin'] as const;

export const ROUTES: readonly Route[] = [
  { method: 'POST', path: 'chat/completions', model: true, who: CALLERS, does: 'ask' },
  { method: 'POST', path: 'responses', model: true, who: CALLERS, does: 'ask' },
  { method: 'POST', path: 'messages', model: true, who: CALLERS, does: 'ask' },
  { method: 'POST', path: 'messages/count_tokens', model: true, who: CALLERS, does: 'count_tokens' },
  { method: 'GET', path: 'models', model: true, who: [...CALLERS, ...READERS], does: 'models' },
  { method: 'GET', path: 'models/{id+}', model: true, who: [...CALLERS, ...READERS], does: 'model' },
  { method: 'GET', path: 'health', model: false, who: [], does: 'health' },
  { method: 'GET', path: 'ready', model: false, who: [], does: 'ready' },
  { method: 'GET', path: 'sessions', model: false, who: READERS, does: 'list' },
  { method: 'POST', path: 'sessions', model: false, who: ['admin'], does: 'open' },
  { method: 'GET', path: 'sessions/{rollout+}', model: false, who: READERS, does: 'show' },
  { method: 'DELETE', path: 'sessions/{rollout+}', model: false, who: ['admin'], does: 'seal' },
];

/** Where a path leads, whatever the method. */
export interface MatchedPath extends RouteMatch<Route> {
  /** The rollout named by the path, percent-encoded. */
  readonly rollout: string | undefined;
}

const PREFIXED = /^(?:\/r\/([^/]+))?((?:\/v1){0,2})\/(.+)$/;
const ROUTER = new Router(ROUTES);

export function matchPath(pathname: string): MatchedPath | undefined {
  const [, rollout, version, path = ''] = PREFIXED.exec(pathname) ?? [];
  const match = ROUTER.match(path);
  if (match === undefined || (!match.routes[0]!.model && (rollout !== undefined || version))) return undefined;
  return { routes: match.routes, segments: match.segments, rollout };
}
