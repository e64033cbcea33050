/**
 * Which route a request is for. Routes are data: a method, a path pattern, and whatever else their server keeps with them.
 *
 * In a pattern `{name}` stands for one segment of the path, `{name+}` for one or more. The first pattern that matches wins; a path
 * without parameters wins over patterns. HEAD is served by the route of GET.
 */
import { httpRefusal } from './refusal.ts';

export interface RoutePattern {
  readonly method: string;
  readonly path: string;
}

/** The routes of one path, one for each method. */
export interface RouteMatch<R extends RoutePattern> {
  readonly routes: readonly R[];
  /** By the names in the pattern, percent-encoded as in the path. */
  readonly segments: Readonly<Record<string, string>>;
}

export class Router<R extends RoutePattern> {
  readonly #exact = new Map<string, RouteMatch<R>>();
  readonly #patterns: { readonly pattern: RegExp; readonly routes: readonly R[] }[] = [];

  constructor(routes: readonly R[]) {
    for (const [path, group] of Map.groupBy(routes, (route) => route.path)) {
      if (path.includes('{')) this.#patterns.push({ pattern: compiled(path), routes: group });
      else this.#exact.set(path, { routes: group, segments: {} });
    }
  }

  /** Undefined where no route has this path, whatever the method. */
  match(path: string): RouteMatch<R> | undefined {
    const exact = this.#exact.get(path);
    if (exact !== undefined) return exact;
    for (const { pattern, routes } of this.#patterns) {
      const found = pattern.exec(path);
      if (found !== null) return { routes, segments: found.groups ?? {} };
    }
    return undefined;
  }
}

/** The route for this method. Throws `method_not_allowed` with an Allow header. */
export function routeFor<R extends RoutePattern>({ routes }: RouteMatch<R>, method: string, path: string): R {
  const served = method === 'HEAD' ? 'GET' : method;
  const route = routes.find((one) => one.method === served);
  if (route !== undefined) return route;
  const allow = routes.flatMap((one) => (one.method === 'GET' ? ['GET', 'HEAD'] : [one.method])).join(', ');
  throw httpRefusal('method_not_allowed', `no route ${method} ${path.slice(0, 200)}`, {
    hint: `the path takes ${allow}`,
    headers: { allow },
  });
}

/** A segment of a path in plain text. Throws `malformed_http`. */
export function decoded(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    throw httpRefusal('malformed_http', 'the path is not percent-encoded UTF-8');
  }
}

function compiled(path: string): RegExp {
  const source = path.replaceAll(/\{(\w+)(\+?)\}/g, (_, name, more) => `(?<${name}>${more ? '(?:[^/]|/(?=[^/]))+?' : '[^/]+'})`);
  return new RegExp(`^${source}$`);
}
