/**
 * Where the page gets its answers: from the server, or from the file that it was exported to, by the same paths (../api.ts). Also what a
 * live run changes: one connection for the whole page, which says when it is lost and reads everything again once it is back. The key of the
 * tab outlives a reload, is known to no other tab, and goes nowhere but into a header.
 */
import { useEffect, useState } from 'preact/hooks';
import type { RunEvent } from '../../core/events.ts';
import { rowFilter } from '../../core/filter.ts';
import { measuresOf, sortedBy } from '../../core/listing.ts';
import type { RolloutRow } from '../../run/inspect.ts';
import type { Change, ExportedView, RolloutPage, RunInfo } from '../api.ts';

export interface Problem {
  readonly message: string;
  readonly hint?: string | undefined;
}

class Refused extends Error implements Problem {
  readonly hint: string | undefined;
  constructor({ message, hint }: Problem) {
    super(message);
    this.hint = hint;
  }
}

const embedded = document.getElementById('trainyard-export')?.textContent;
/** Null if there is a server. */
export const exported: ExportedView | null = embedded ? (JSON.parse(embedded) as ExportedView) : null;

export const problemOf = (thrown: unknown): Problem => {
  const { message = String(thrown), hint } = thrown as Partial<Problem>;
  return { message, hint };
};

const KEY = 'trainyard-key';
const LINK = /^#token=(.+)$/;

/** Where the address is a link: exchanges its token, which leaves the address at once. */
async function signIn(): Promise<void> {
  const token = LINK.exec(location.hash)?.[1];
  if (token === undefined) return;
  history.replaceState(null, '', '#/');
  const response = await sendAs(decodeURIComponent(token), '/api/session', { method: 'POST' });
  sessionStorage.setItem(KEY, ((await response.json()) as { readonly key: string }).key);
}

// A link in a tab that shows the page changes only what is behind the #.
addEventListener('hashchange', () => LINK.test(location.hash) && location.reload());

const signedIn = exported === null ? signIn().catch((thrown: unknown) => thrown) : undefined;

/** A link that was used stays harmless in the tab that used it. */
async function send(path: string, init: RequestInit = {}): Promise<Response> {
  const failure = await signedIn;
  const key = sessionStorage.getItem(KEY);
  if (failure !== undefined && key === null) throw failure;
  return await sendAs(key, path, init);
}

async function sendAs(key: string | null, path: string, init: RequestInit): Promise<Response> {
  const headers = { ...init.headers, ...(key !== null && { authorization: `Bearer ${key}` }) };
  const response = await fetch(path, { ...init, headers }).catch((thrown: unknown) => {
    if (init.signal?.aborted) throw thrown;
    throw new Refused({ message: 'The server does not answer.', hint: 'Is trainyard view still running? Start it again.' });
  });
  if (response.ok) return response;
  const { error } = (await response.json().catch(() => ({}))) as { readonly error?: Problem };
  throw new Refused(error ?? { message: `The server answered with status ${response.status}.` });
}

export const post = (path: string, body: unknown): Promise<Response> =>
  send(path, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) });

export async function ask<T>(path: string, signal?: AbortSignal): Promise<T> {
  if (exported !== null) return answerIn(exported, path) as T;
  return (await (await send(path, signal ? { signal } : {})).json()) as T;
}

function answerIn({ answers }: ExportedView, path: string): unknown {
  const [plain = '', query] = path.split('?');
  const found = answers[path];
  if (found !== undefined) return found;
  const all = answers[plain];
  if (all !== undefined && plain.endsWith('/rollouts')) return pageOf(plain, all as RolloutPage, new URLSearchParams(query));
  throw new Refused({ message: 'The exported file does not hold this.', hint: 'Look at the run itself: trainyard view <run>' });
}

/** The latest list, so that scrolling does not sort it again. */
let listed: { readonly key: string; readonly rows: readonly RolloutRow[] } | undefined;

function listedOf(all: readonly RolloutRow[], key: string, filter: string, sort: string): readonly RolloutRow[] {
  if (listed?.key === key) return listed.rows;
  const rows = sortedBy(all.filter(rowFilter(filter)), sort);
  listed = { key, rows };
  return rows;
}

function pageOf(path: string, { rows: all, ...page }: RolloutPage, query: URLSearchParams): RolloutPage {
  const filter = query.get('filter') ?? '';
  const sort = query.get('sort') ?? '-seq';
  const rows = listedOf(all, JSON.stringify([path, filter, sort]), filter, sort);
  const from = Number(query.get('from') ?? 0);
  return {
    ...page,
    from,
    matching: rows.length,
    rows: rows.slice(from, from + Number(query.get('count') ?? 100)),
    ...measuresOf(rows),
  };
}

export interface Answer<T> {
  readonly value?: T;
  readonly problem?: Problem;
}

/** Asks again when `version` changes, and shows the old answer meanwhile. */
export function useAnswer<T>(path: string, version: unknown = 0): Answer<T> {
  const [state, set] = useState<Answer<T> & { readonly path?: string }>({});
  useEffect(() => {
    const stop = new AbortController();
    ask<T>(path, stop.signal).then(
      (value) => stop.signal.aborted || set({ path, value }),
      (thrown) => stop.signal.aborted || set({ path, problem: problemOf(thrown) }),
    );
    return () => stop.abort();
  }, [path, version]);
  return state.path === path ? state : {};
}

interface Live {
  readonly connection: 'connecting' | 'live' | 'lost' | 'file';
  readonly runs?: readonly RunInfo[];
  readonly problem?: Problem;
  readonly events: Readonly<Record<string, readonly RunEvent[]>>;
}

let live: Live = { connection: exported === null ? 'connecting' : 'file', events: {} };
const watchers = new Set<(now: Live) => void>();

function update(changed: Partial<Live>): void {
  live = { ...live, ...changed };
  for (const watcher of watchers) watcher(live);
}

export function useLive(): Live {
  const [now, set] = useState(live);
  useEffect(() => {
    set(live);
    watchers.add(set);
    return () => void watchers.delete(set);
  }, []);
  return now;
}

let reading = false;
let again = false;

/** What is asked for while it reads is read once more, after that. */
async function readAll(): Promise<void> {
  again = true;
  if (reading) return;
  for (reading = true; again; ) {
    again = false;
    await readOnce();
  }
  reading = false;
}

async function readOnce(): Promise<void> {
  try {
    const runs = await ask<readonly RunInfo[]>('/api/runs');
    const readable = runs.filter(({ problem }) => problem === undefined);
    const read = readable.map(async ({ id }) => [id, await ask<readonly RunEvent[]>(`/api/runs/${id}/events`)] as const);
    update({ runs, events: Object.fromEntries(await Promise.all(read)) });
  } catch (thrown) {
    if (live.runs === undefined) update({ problem: problemOf(thrown) });
  }
}

function take({ run, state, events, from, rollouts, restart }: Change): void {
  const before = live.events[run];
  if (restart || before === undefined || before.length < from) return void readAll();
  const now = [...before.slice(0, from), ...events];
  const steps = now.findLast((event) => event.type === 'step-end' || event.type === 'sft-step')?.step ?? 0;
  const runs = (live.runs ?? []).map((info) => (info.id === run ? { ...info, state, rollouts, steps } : info));
  update({ runs, events: { ...live.events, [run]: now } });
}

/** Begins to follow, and begins again when the connection is lost; called once. */
export async function follow(): Promise<void> {
  if (exported !== null) return await readAll();
  try {
    // Not by EventSource, which sends no headers.
    const reader = (await send('/api/changes')).body!.pipeThrough(new TextDecoderStream()).getReader();
    update({ connection: 'live' });
    for (let rest = ''; ; ) {
      const { value, done } = await reader.read();
      if (done) break;
      const messages = (rest + value).split('\n\n');
      rest = messages.pop() ?? '';
      for (const message of messages) if (message.startsWith('data: ')) take(JSON.parse(message.slice(6)) as Change);
    }
  } catch {
    // What is wrong is said by whoever reads.
  }
  update({ connection: 'lost' });
  if (live.runs === undefined) void readAll();
  setTimeout(follow, 2000);
}
