/**
 * The server behind the page of `trainyard view`: the answers of api.ts about the runs that were named on the command line, and no others:
 * a request says their number, never a path. A link holds a token that works once, behind its #, so that no browser sends it unasked. The page
 * exchanges it for a key, which it sends as a header: a cookie would reach every other server on this machine, since cookies know no ports.
 * Without the key only the page itself is served, which is the same for all. The guard of http/ refuses other sites' pages and foreign names
 * of this machine.
 */
import { randomBytes } from 'node:crypto';
import { createReadStream, readFileSync } from 'node:fs';
import { mkdtemp, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { z } from 'zod';
import { TrainyardError } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import { compare, measuredIn } from '../evaluation/compare.ts';
import { DATA_FORMATS } from '../export/data-rows.ts';
import { exportData } from '../export/export-data.ts';
import { bearerOf, isSameSecret } from '../http/guard.ts';
import { KeyedServer, type Listener, serve } from '../http/http-server.ts';
import {
  type BodyStream,
  type HttpReply,
  type HttpRequest,
  jsonReply,
  type RoutePattern,
  Router,
  readJson,
} from '../http/message.ts';
import { type ErrorTable, type Failure, failureOf, httpRefusal } from '../http/refusal.ts';
import { Changes } from './changes.ts';
import { pageFile, shell } from './page-files.ts';
import type { ShownRun } from './shown-run.ts';

interface ViewOptions {
  readonly runs: readonly ShownRun[];
  readonly host?: string | undefined;
  readonly port?: number | undefined;
  /** Required beyond loopback. Works in a link any number of times. */
  readonly token?: string | undefined;
  /** Called with a link for the first tab, and with a new one whenever one was used. */
  onLink(link: string): void;
}

const CSP = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "connect-src 'self'",
  "img-src 'self' data:",
  "frame-ancestors 'none'",
  "base-uri 'none'",
  "form-action 'none'",
].join('; ');
const HEADERS = {
  'content-security-policy': CSP,
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'no-referrer',
  'cross-origin-resource-policy': 'same-origin',
  'cache-control': 'no-store',
} as const;
const HTML = { 'content-type': 'text/html; charset=utf-8' } as const;

const ERRORS: ErrorTable = {
  rows: {
    USAGE: { status: 400, code: 'USAGE' },
    REQUEST_INVALID: { status: 400, code: 'invalid_request' },
    FILE_NOT_FOUND: { status: 404, code: 'FILE_NOT_FOUND' },
    SESSION_UNKNOWN: { status: 401, code: 'not_signed_in' },
  },
  otherwise: { status: 500, code: 'INTERNAL' },
};

const BODY = { bodyBytes: 4 * 1024 * 1024, nesting: 10 };
const MOST_ROWS = 1000;
/** Tabs that may be signed in. */
const MOST_KEYS = 100;

const list = z.object({
  filter: z.string().default(''),
  sort: z.string().default('-seq'),
  from: z.coerce.number().int().min(0).default(0),
  count: z.coerce.number().int().min(0).max(MOST_ROWS).default(100),
});
const pair = z.object({ a: z.string(), b: z.string() });
const marks = z.strictObject({
  rolloutIds: z.array(z.string()).min(1).max(10_000),
  turn: z.int().min(0).optional(),
  reason: z.string().optional(),
  undo: z.boolean().optional(),
});
const dataset = z.strictObject({
  format: z.enum(Object.keys(DATA_FORMATS) as (keyof typeof DATA_FORMATS)[]),
  only: z.enum(['successes', 'graded', 'all']).optional(),
  filter: z.string(),
});

interface Route extends RoutePattern {
  answer(server: ViewServer, segments: Readonly<Record<string, string>>, request: HttpRequest): Promise<HttpReply>;
}

type OfRun = (run: ShownRun, id: string) => Promise<object>;
const ofRun = (path: string, answer: OfRun): Route => ({
  method: 'GET',
  path: `/api/runs/{run}${path}`,
  answer: async (server, { run, id = '' }) => jsonReply(200, await answer(server.run(run!), id)),
});

const ROUTES: readonly Route[] = [
  { method: 'GET', path: '/', answer: async () => page(shell('Trainyard')) },
  { method: 'GET', path: '/page.js', answer: async () => file('page.js', 'text/javascript; charset=utf-8') },
  { method: 'GET', path: '/page.css', answer: async () => file('page.css', 'text/css; charset=utf-8') },
  { method: 'POST', path: '/api/session', answer: async (server, _, request) => jsonReply(200, server.signIn(request)) },
  {
    method: 'GET',
    path: '/api/runs',
    answer: async ({ runs }) => jsonReply(200, await Promise.all(runs.map((run) => run.info()))),
  },
  ofRun('/events', async (run) => {
    await run.look();
    return run.events;
  }),
  {
    method: 'GET',
    path: '/api/runs/{run}/rollouts',
    answer: async (server, { run }, { query }) => jsonReply(200, await server.run(run!).list(asked(list, query))),
  },
  ofRun('/rollouts/{id}', (run, id) => run.rollout(id)),
  ofRun('/rollouts/{id}/tokens', (run, id) => run.tokens(id)),
  ofRun('/groups/{id}', (run, id) => run.group(id)),
  {
    method: 'GET',
    path: '/api/diff',
    answer: async (server, _, { query }) => {
      const { a, b } = asked(pair, query);
      return jsonReply(200, compare(await measured(server.run(a)), await measured(server.run(b))));
    },
  },
  {
    method: 'GET',
    path: '/api/changes',
    answer: async ({ runs }, _, { signal }) => ({ status: 200, body: new Changes(runs, signal ?? new AbortController().signal) }),
  },
  {
    method: 'POST',
    path: '/api/runs/{run}/marks',
    answer: async (server, { run }, request) => jsonReply(200, await server.run(run!).mark(await posted(marks, request))),
  },
  {
    method: 'POST',
    path: '/api/runs/{run}/dataset',
    answer: async (server, { run }, request) => download(server.run(run!), await posted(dataset, request), request),
  },
];

const ROUTER = new Router(ROUTES);
/** What needs no key: the page, which holds nothing of a run, and the way to get one. */
const OPEN: ReadonlySet<string> = new Set(['/', '/page.js', '/page.css', '/api/session']);

/** Serves until disposed; the runs stay the caller's. Throws USAGE if the address cannot be bound or lacks a token. */
export async function serveView(options: ViewOptions): Promise<Listener> {
  const server = new ViewServer(options);
  const { host, port, token: value } = options;
  const listener = await serve(server, { host, port, secret: { name: 'token', value } });
  server.listening(listener.origin);
  return listener;
}

class ViewServer extends KeyedServer {
  readonly runs: readonly ShownRun[];
  readonly #options: ViewOptions;
  readonly #keys: string[] = [];
  #token: string;
  #origin = '';

  constructor(options: ViewOptions) {
    super();
    this.#options = options;
    this.runs = options.runs;
    this.#token = options.token ?? secret();
  }

  listening(origin: string): void {
    this.#origin = origin;
    this.#options.onLink(this.#link);
  }

  run(id: string): ShownRun {
    const run = this.runs.find((one) => one.id === id);
    if (run === undefined) throw httpRefusal('not_found', `there is no run ${JSON.stringify(id.slice(0, 100))}`);
    return run;
  }

  get #link(): string {
    return `${this.#origin}/#token=${encodeURIComponent(this.#token)}`;
  }

  /** Exchanges a link's token for a key. Throws SESSION_UNKNOWN. */
  signIn(request: HttpRequest): { readonly key: string } {
    if (!isSameSecret(this.#token, bearerOf(request))) throw unknown('This link was used before, or is not right.');
    const key = secret();
    this.#keys.push(key);
    if (this.#keys.length > MOST_KEYS) this.#keys.shift();
    if (this.#options.token === undefined) {
      this.#token = secret();
      this.#options.onLink(this.#link);
    }
    return { key };
  }

  protected async route(request: HttpRequest): Promise<HttpReply> {
    const { method, path } = request;
    const given = bearerOf(request);
    const isKnown = this.#keys.some((key) => isSameSecret(key, given));
    if (!isKnown && !OPEN.has(path)) throw unknown('This page needs the link that trainyard view printed.');
    const { route, segments } = ROUTER.find(method, path);
    const reply = await route.answer(this, segments, request);
    return { ...reply, headers: { ...HEADERS, ...reply.headers } };
  }

  protected failureOf(thrown: unknown): Failure {
    return failureOf(thrown, ERRORS);
  }

  protected replyTo({ status, code, message, hint, headers }: Failure): HttpReply {
    return jsonReply(status, { error: { code, message, ...defined({ hint }) } }, { ...HEADERS, ...headers });
  }
}

const measured = ({ path, store }: ShownRun): ReturnType<typeof measuredIn> => measuredIn(path, store);

/** 256 bits. */
function secret(): string {
  return randomBytes(32).toString('base64url');
}

function unknown(message: string): TrainyardError {
  const hint = 'Open the latest link that trainyard view printed in its terminal: each works once, for one tab of a browser.';
  return new TrainyardError('SESSION_UNKNOWN', message, hint);
}

function page(body: string): HttpReply {
  return { status: 200, body, headers: HTML };
}

function file(name: 'page.js' | 'page.css', type: string): HttpReply {
  return { status: 200, body: readFileSync(pageFile(name)), headers: { 'content-type': type } };
}

function asked<T extends z.ZodType>(schema: T, query: string): z.infer<T> {
  return checked(schema, Object.fromEntries(new URLSearchParams(query)));
}

/** Browsers always say where a POST comes from; the guard has compared it with this server's name. */
async function posted<T extends z.ZodType>(schema: T, request: HttpRequest): Promise<z.infer<T>> {
  if (request.header('origin') === undefined) throw httpRefusal('forbidden_origin', 'the request does not say its origin');
  if (request.header('content-type') === undefined) throw httpRefusal('unsupported_media_type', 'content-type: expected JSON');
  return checked(schema, await readJson(request, BODY));
}

function checked<T extends z.ZodType>(schema: T, value: unknown): z.infer<T> {
  const { data, error } = schema.safeParse(value);
  if (error === undefined) return data as z.infer<T>;
  const [{ path, message } = { path: [], message: 'it is malformed' }] = error.issues;
  throw new TrainyardError('USAGE', `${path.join('.') || 'the request'}: ${message}`);
}

/** Writes the file beside, sends it piece by piece, and removes it whatever happens to the client. */
async function download(run: ShownRun, wanted: z.infer<typeof dataset>, { signal }: HttpRequest): Promise<HttpReply> {
  const rows = await run.matching(wanted.filter);
  const purpose = rows.some((row) => row.purpose === 'train') ? 'train' : 'eval';
  const folder = await mkdtemp(join(tmpdir(), 'trainyard-view-'));
  const remove = (): Promise<void> => rm(folder, { recursive: true, force: true });
  try {
    const to = join(folder, 'rollouts');
    await exportData({ from: run.path, store: run.store, purpose, to, ...wanted } as Parameters<typeof exportData>[0], signal);
    const name = `trainyard-rollouts.${DATA_FORMATS[wanted.format].file}`;
    const body = await fileStream(to, remove);
    signal?.addEventListener('abort', () => void remove(), { once: true });
    const headers = { 'content-type': 'application/octet-stream', 'content-disposition': `attachment; filename="${name}"` };
    return { status: 200, body, headers };
  } catch (thrown) {
    await remove();
    throw thrown;
  }
}

async function fileStream(path: string, remove: () => Promise<void>): Promise<BodyStream> {
  const { size } = await stat(path);
  const pieces = createReadStream(path)[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  let sent = 0;
  return {
    onCut: undefined,
    get drained() {
      return sent >= size;
    },
    async read() {
      const { value, done } = await pieces.next();
      sent += done ? 0 : value.length;
      return done ? undefined : value;
    },
    delivered: () => void remove(),
    cut: () => void remove(),
  };
}
