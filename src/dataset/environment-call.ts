/** One POST to an environment service: bounded in time and size. Redirects are not followed. */
import { describeThrown } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { MAX_NESTING, nestingOf } from '../core/json.ts';
import type { Json } from '../core/types.ts';

const MAX_ANSWER_BYTES = 64 * 2 ** 20;
/** The connection was never made. */
const NEVER_ARRIVED: ReadonlySet<unknown> = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH']);

export interface Call {
  readonly url: string;
  readonly timeoutMs: number;
  readonly signal: AbortSignal | undefined;
  readonly fields: Readonly<Record<string, Json>>;
}

/** No answer, or one that says "not now": it may help to ask again. */
export class Unanswered extends Error {
  readonly mayHaveArrived: boolean;

  constructor(message: string, mayHaveArrived: boolean) {
    super(message);
    this.mayHaveArrived = mayHaveArrived;
  }
}

export async function send({ url, timeoutMs, signal, fields }: Call): Promise<unknown> {
  const deadline = AbortSignal.timeout(timeoutMs);
  const request = {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ messages: {}, params: {}, ...fields }),
    redirect: 'manual',
    signal: signal === undefined ? deadline : AbortSignal.any([deadline, signal]),
  } as const;
  try {
    const response = await fetch(url, request);
    if (response.status >= 300 && response.status < 400) {
      await response.body?.cancel();
      // The task and the action of an agent are for the service that was named, and no other.
      throw new TrainyardError('WORKFLOW_FAILED', `${url} answered HTTP ${response.status}, and redirects are not followed`);
    }
    const text = await textOf(response, url);
    if (response.ok) return jsonIn(text, url);
    const said = `HTTP ${response.status}${text === '' ? '' : `: ${text.slice(0, 200)}`}`;
    if (response.status >= 500 || response.status === 429) throw new Unanswered(said, true);
    throw new TrainyardError('WORKFLOW_FAILED', `${url} answered ${said}`);
  } catch (thrown) {
    if (thrown instanceof Unanswered || thrown instanceof TrainyardError) throw thrown;
    signal?.throwIfAborted();
    if (deadline.aborted) throw new Unanswered(`no answer within ${timeoutMs} ms`, true);
    if (thrown instanceof SyntaxError) throw new TrainyardError('WORKFLOW_FAILED', `${url} answered no JSON`);
    const code = (thrown as { readonly cause?: { readonly code?: unknown } }).cause?.code;
    throw new Unanswered(code === undefined ? describeThrown(thrown) : String(code), !NEVER_ARRIVED.has(code));
  }
}

function jsonIn(text: string, url: string): unknown {
  if (nestingOf(text) > MAX_NESTING) {
    throw new TrainyardError('WORKFLOW_FAILED', `${url} answered JSON nested deeper than ${MAX_NESTING} levels`);
  }
  return JSON.parse(text);
}

async function textOf(response: Response, url: string): Promise<string> {
  const pieces: Uint8Array[] = [];
  let held = 0;
  for await (const piece of response.body ?? []) {
    held += piece.length;
    if (held > MAX_ANSWER_BYTES) throw new TrainyardError('WORKFLOW_FAILED', `${url} answered more than 64 MiB`);
    pieces.push(piece);
  }
  return Buffer.concat(pieces).toString('utf8');
}
