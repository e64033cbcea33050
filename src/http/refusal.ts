/**
 * Errors over HTTP. A refusal is an error with its own status and code. Each server has a table of its refusals and one that maps other
 * errors, and formats the body itself. Statuses steer clients: they retry 408, 409, 429 and 5xx; other 4xx are final.
 */
import type { ErrorCode } from '../core/error-codes.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Json } from '../core/types.ts';

export interface ErrorRow {
  readonly status: number;
  readonly code: string;
}

export type Headers = Readonly<Record<string, string>>;

export interface RefusalOptions {
  /** Default: REQUEST_INVALID. */
  readonly code?: ErrorCode | undefined;
  readonly hint?: string | undefined;
  /** The request field at fault. */
  readonly param?: string | undefined;
  readonly headers?: Headers | undefined;
}

/** An error with its own status and wire code. Create it with a function that `refusals` returns. */
export class Refusal extends TrainyardError {
  readonly row: ErrorRow;
  readonly headers: Headers | undefined;

  constructor(row: ErrorRow, message: string, { code = 'REQUEST_INVALID', hint, param, headers }: RefusalOptions = {}) {
    super(code, message, { ...(hint === undefined ? {} : { hint }), ...(param === undefined ? {} : { param }) });
    this.row = row;
    this.headers = headers;
  }
}

export function refusals<Code extends string>(statuses: Readonly<Record<Code, number>>) {
  return (code: Code, message: string, options?: RefusalOptions): Refusal =>
    new Refusal({ status: statuses[code], code }, message, options);
}

/** Refusals of the HTTP layer, shared by all servers. */
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

/** How a server answers errors. */
export interface ErrorTable {
  /** By TrainyardError code, or by refusal code if the server uses another name or status for it. */
  readonly rows: Readonly<Partial<Record<string, ErrorRow>>>;
  /** For everything else, which is a defect. */
  readonly otherwise: ErrorRow;
}

export interface Failure extends ErrorRow {
  readonly message: string;
  readonly hint: string | undefined;
  readonly param: string | undefined;
  readonly headers?: Headers | undefined;
  /** Details that the client's own code looks for. */
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
