/** What a rollout server answers where it does not do what was asked: a status, and `detail` as servers made with FastAPI word it. */
import { messageOf, TrainyardError } from '../core/errors.ts';
import { Refusal } from '../http/refusal.ts';

export interface Reply {
  readonly status: number;
  readonly body: object;
  readonly headers?: Readonly<Record<string, string>> | undefined;
}

/** One thing that is wrong with a body. */
export interface Fault {
  readonly field: string;
  readonly message: string;
}

export class RequestFaults extends TrainyardError {
  readonly faults: readonly Fault[];

  constructor(faults: readonly Fault[]) {
    super('REQUEST_INVALID', faults.map(({ field, message }) => `${field}: ${message}`).join('; '));
    this.faults = faults;
  }
}

/** A refusal with a status of its own. */
export class Denial extends TrainyardError {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>> | undefined;

  constructor(status: number, message: string, headers?: Readonly<Record<string, string>>) {
    super('REQUEST_INVALID', message);
    this.status = status;
    this.headers = headers;
  }
}

export function replyOf(thrown: unknown): Reply {
  if (thrown instanceof RequestFaults) {
    const detail = thrown.faults.map(({ field, message }) => ({ loc: ['body', field], msg: message, type: 'value_error' }));
    return { status: 422, body: { detail } };
  }
  const detail = wordsOf(thrown);
  if (thrown instanceof Denial) return { status: thrown.status, body: { detail }, headers: thrown.headers };
  if (thrown instanceof Refusal) {
    const { status } = thrown.row;
    return { status, body: { detail }, headers: { ...(status === 429 ? { 'retry-after': '1' } : {}), ...thrown.headers } };
  }
  if (thrown instanceof TrainyardError && thrown.code === 'SESSION_UNKNOWN') {
    return { status: 401, body: { detail }, headers: { 'www-authenticate': 'Bearer' } };
  }
  if (thrown instanceof TrainyardError && thrown.code === 'REQUEST_INVALID') return { status: 422, body: { detail } };
  if (thrown instanceof TrainyardError && thrown.code === 'REQUEST_CONFLICT') return { status: 409, body: { detail } };
  // What went wrong inside is not the caller's business, and may hold what is not for it.
  return { status: 500, body: { detail: 'Internal server error' } };
}

function wordsOf(thrown: unknown): string {
  const hint = thrown instanceof TrainyardError && thrown.hint !== undefined ? ` (${thrown.hint})` : '';
  return `${messageOf(thrown).slice(0, 1000)}${hint}`;
}
