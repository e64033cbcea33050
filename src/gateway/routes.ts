/**
 * The routes of the gateway as data: method, path, who may, what it does. docs/reference/wire-protocol.md publishes them; a test keeps
 * the two equal.
 *
 * Routes of the model are served below `/`, `/v1` and either of them below `/r/<rollout>`; also with a second `/v1`, since some
 * clients add their own to a base URL that has one. No route looks at the query.
 */
import type { Capability } from './keys.ts';

export type Action = 'ask' | 'count_tokens' | 'models' | 'model' | 'health' | 'ready' | 'list' | 'show' | 'open' | 'seal';

export interface Route {
  readonly method: 'GET' | 'POST' | 'DELETE';
  /** Without the prefixes; `{name}` is whatever stands there. */
  readonly path: string;
  /** Whether it is a route of the model, with its prefixes. */
  readonly model: boolean;
  /** Nobody in particular: no key is needed. */
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
  { method: 'GET', path: 'models/{id}', model: true, who: [...CALLERS, ...READERS], does: 'model' },
  { method: 'GET', path: 'health', model: false, who: [], does: 'health' },
  { method: 'GET', path: 'ready', model: false, who: [], does: 'ready' },
  { method: 'GET', path: 'sessions', model: false, who: READERS, does: 'list' },
  { method: 'POST', path: 'sessions', model: false, who: ['admin'], does: 'open' },
  { method: 'GET', path: 'sessions/{rollout}', model: false, who: READERS, does: 'show' },
  { method: 'DELETE', path: 'sessions/{rollout}', model: false, who: ['admin'], does: 'seal' },
];

/** Where a path leads, whatever the method. */
export interface Place {
  /** One for each method. */
  readonly routes: readonly Route[];
  /** As it stands in the path, percent-encoded. */
  readonly rollout: string | undefined;
  /** What `{name}` stands for, percent-encoded. */
  readonly parameter: string;
}

const PREFIXED = /^(?:\/r\/([^/]+))?((?:\/v1){0,2})\/(.+)$/;
const BY_PATH = Map.groupBy(ROUTES, ({ path }) => path.replace(/\{.*/, '*'));

export function placeOf(pathname: string): Place | undefined {
  const [, rollout, version = '', path = ''] = PREFIXED.exec(pathname) ?? [];
  const slash = path.indexOf('/') + 1;
  const routes = BY_PATH.get(path) ?? (slash > 0 && slash < path.length ? BY_PATH.get(`${path.slice(0, slash)}*`) : undefined);
  if (routes === undefined || (!routes[0]!.model && (rollout !== undefined || version !== ''))) return undefined;
  return { routes, rollout, parameter: path.slice(slash) };
}

/** HEAD is GET whose body is not sent. */
export function routeFor({ routes }: Place, method: string): Route | undefined {
  const asked = method === 'HEAD' ? 'GET' : method;
  return routes.find((route) => route.method === asked);
}

/** For the `Allow` header. */
export function allowed({ routes }: Place): string {
  return routes.flatMap(({ method }) => (method === 'GET' ? ['GET', 'HEAD'] : [method])).join(', ');
}
