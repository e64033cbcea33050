/**
 * What a route is, and which one a request is for. A route gets the server's parts and a request whose sender is known; it replies or
 * throws.
 */
import type { Clock } from '../../core/contracts.ts';
import { ApiError } from './api-error.ts';
import type { BaseModel } from './base-model.ts';
import type { Futures } from './futures.ts';
import type { Waits } from './limits.ts';
import type { TinkerReply, TinkerRequest } from './message.ts';
import type { SamplerPool } from './sampler-pool.ts';
import type { Sessions } from './sessions.ts';
import type { WeightsFolder } from './weights-folder.ts';

export interface Parts {
  readonly base: BaseModel;
  readonly futures: Futures;
  readonly sessions: Sessions;
  readonly samplers: SamplerPool;
  readonly weights: WeightsFolder;
  readonly waits: Waits;
  readonly clock: Clock;
  /** What was taken and not yet carried out. */
  readonly load: { bytes: number; samples: number };
}

export interface Routed extends TinkerRequest {
  /** What stands in the path where the route has a star. */
  readonly names: readonly string[];
  readonly query: URLSearchParams;
}

export type Route = (parts: Parts, request: Routed) => Promise<TinkerReply>;

/** By method and path below /api/v1; a star is one or more parts of the path. */
export type Routes = Readonly<Record<string, Route>>;

const ROOT = '/api/v1';

export class RouteTable {
  readonly #exact = new Map<string, Route>();
  readonly #patterns: { readonly method: string; readonly pattern: RegExp; readonly route: Route }[] = [];

  constructor(...all: readonly Routes[]) {
    for (const [key, route] of all.flatMap((routes) => Object.entries(routes))) {
      const [method = '', path = ''] = key.split(' ');
      if (path.includes('*')) this.#patterns.push({ method, pattern: patternOf(path), route });
      else this.#exact.set(key, route);
    }
  }

  /** Undefined for what is not offered. Throws `method_not_allowed`. */
  find(method: string, path: string): { readonly route: Route; readonly names: readonly string[] } | undefined {
    const below = path.startsWith(`${ROOT}/`) ? path.slice(ROOT.length) : '';
    const exact = this.#exact.get(`${method} ${below}`);
    if (exact !== undefined) return { route: exact, names: [] };
    for (const entry of this.#patterns) {
      const found = entry.method === method ? entry.pattern.exec(below) : null;
      if (found !== null) return { route: entry.route, names: found.slice(1).map(decoded) };
    }
    const other = [...this.#exact.keys()].find((key) => key.split(' ')[1] === below);
    if (other !== undefined) throw new ApiError('method_not_allowed', `${path} takes ${other.split(' ')[0]}, not ${method}`);
    return undefined;
  }
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    throw new ApiError('invalid_request', `${part.slice(0, 80)} in the path is not UTF-8`);
  }
}

function patternOf(path: string): RegExp {
  return new RegExp(`^${path.replaceAll('*', '((?:[^/]|/(?=[^/]))+?)')}$`);
}
