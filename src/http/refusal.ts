/**
 * Errors over HTTP. A refusal is an error with a status and a code of its own; each server declares its refusals as a table and maps the
 * errors of the rest of the system with another. How a failure is worded in a body is up to the server.
 *
 * Statuses decide what clients do: 408, 409, 429 and 5xx are tried again, other 4xx are final.
 */
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Json } from '../core/types.ts';

export interface ErrorRow {
  readonly status: number;
  readonly code: string;
}

export type Headers = Readonly<Record<string, string>>;

export interface RefusalOptions {
  /** What to do about it. */
  readonly hint?: string | undefined;
  /** The field of the request that it is about. */
  readonly param?: string | undefined;
  readonly headers?: Headers | undefined;
}

/** A REQUEST_INVALID with a status and a code of its own; made by the functions that `refusals` returns. */
export class Refusal extends TrainyardError {
  readonly row: ErrorRow;
  readonly headers: Headers | undefined;

  constructor(row: ErrorRow, message: string, { hint, param, headers }: RefusalOptions = {}) {
    super('REQUEST_INVALID', message, { ...(hint === undefined ? {} : { hint }), ...(param === undefined ? {} : { param }) });
    this.row = row;
    this.headers = headers;
  }
}

/** A function that makes the refusals of one table of statuses by code. */
export function refusals<Code extends string>(statuses: Readonly<Record<Code, number>>) {
  return (code: Code, message: string, options?: RefusalOptions): Refusal =>
    new Refusal({ status: statuses[code], code }, message, options);
}

/** What this layer refuses, for every server. */
export const HTTP_REFUSALS = {
  malformed_http: 400,
  forbidden_origin: 403,
  not_found: 404,
  method_not_allowed: 405,
  request_timeout: 408,
  request_too_large: 413,
  unsupported_media_type: 415,
  upgrade_required: 426,
  too_many_wrong_keys: 429,
  headers_too_large: 431,
} as const;

export const httpRefusal = refusals(HTTP_REFUSALS);

/** How a server answers errors that are not refusals. */
export interface ErrorTable {
  /** By the code of a TrainyardError; by the code of a refusal where the server has another name or status for it. */
  readonly rows: Readonly<Partial<Record<string, ErrorRow>>>;
  /** Everything else: a defect. */
  readonly otherwise: ErrorRow;
}

export interface Failure extends ErrorRow {
  readonly message: string;
  readonly hint: string | undefined;
  readonly param: string | undefined;
  readonly headers?: Headers | undefined;
  /** What the client's own code looks for in the error. */
  readonly details?: Json | undefined;
}

export function failureOf(thrown: unknown, { rows, otherwise }: ErrorTable): Failure {
  const refused = thrown instanceof Refusal ? thrown : undefined;
  const known = thrown instanceof TrainyardError ? thrown : undefined;
  const row = (refused && (rows[refused.row.code] ?? refused.row)) ?? (known && rows[known.code]) ?? otherwise;
  const headers = row.status === 429 ? { 'retry-after': '1', ...refused?.headers } : refused?.headers;
  const { hint, param, details } = known ?? {};
  return { status: row.status, code: row.code, message: messageOf(thrown), hint, param, headers, details };
}
