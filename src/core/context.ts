/**
 * The ambient rollout: which rollout the running code belongs to, across awaits, timers and callbacks. Also its model, and a `fetch` that
 * reaches it, for clients shared by all rollouts; and what it prints. Contexts nest: a rollout started inside another sees its own context,
 * and the outer one is restored when it returns.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import type { ModelHandle, WorkflowContext } from './contracts.ts';
import { TrainyardError } from './errors.ts';
import type { Message } from './types.ts';

const storage = new AsyncLocalStorage<WorkflowContext | undefined>();

export const runInRollout = <T>(ctx: WorkflowContext, fn: () => T): T => storage.run(ctx, fn);

/** For what is Trainyard's own, though the rollout's code caused it: an event, a warning. */
export const outsideRollout = <T>(fn: () => T): T => storage.run(undefined, fn);

export const currentRollout = (): WorkflowContext | undefined => storage.getStore();

/** The policy as a role of the current rollout. Throws NO_ROLLOUT outside of one. */
export function ambientModel(role?: string): ModelHandle {
  return required('ambientModel').model(role);
}

/** A rollout whose agents each keep a named conversation, which is a thread at the gateway and a sample for the grader. */
export interface SampleContext {
  model(sampleId: string): ModelHandle;
  /** Throws if the name is taken. */
  registerSampleSource(name: string, source: SampleSource): void;
  nameForUnnamed(): string;
}

export interface SampleView {
  readonly id: string;
  readonly messages: readonly Message[];
}

/** An agent or session that keeps a conversation. Read when the rollout has ended. */
export interface SampleSource {
  getSample(name: string): SampleView | Promise<SampleView>;
}

const samples = new AsyncLocalStorage<SampleContext>();

export const runWithSamples = <T>(context: SampleContext, fn: () => T): T => samples.run(context, fn);
export const currentSamples = (): SampleContext | undefined => samples.getStore();

const importing = new AsyncLocalStorage<object[]>();

/** `fn` imports a module; `found` receives what it announces. */
export const whileImporting = <T>(found: object[], fn: () => T): T => importing.run(found, fn);

/** Called by constructors whose instances belong to the entry that is being imported, exported or not. */
export const announce = (made: object): void => void importing.getStore()?.push(made);

/**
 * For one client shared by all rollouts: `new OpenAI({ apiKey: 'unused', fetch: rolloutFetch })`. Ignores the client's base URL and key,
 * and sends each call to the rollout it is made in, as its default role. Throws NO_ROLLOUT outside of one.
 */
export const rolloutFetch: typeof globalThis.fetch = async (input, init) =>
  await sendThrough(required('rolloutFetch').model(), input, init);

/** Sends a request to the gateway of a model handle, whatever the base URL and key that it was made for. */
export async function sendThrough(
  { baseURL, apiKey, fetch }: Pick<ModelHandle, 'baseURL' | 'apiKey' | 'fetch'>,
  ...[input, init]: Parameters<typeof globalThis.fetch>
): Promise<Response> {
  const given = input instanceof Request ? input.url : input;
  const { pathname, search } = new URL(given);
  const headers = headersOf(input, init);
  for (const name of KEY_HEADERS) headers.delete(name);
  headers.set('authorization', `Bearer ${apiKey}`);
  const url = `${baseURL}/${tailOf(pathname)}${search}`;
  return await fetch(input instanceof Request ? new Request(url, input) : url, { ...init, headers });
}

const KEY_HEADERS = ['authorization', 'x-api-key', 'x-goog-api-key', 'api-key'];
const ROUTE = /\/((?:chat\/completions|responses|messages|messages\/count_tokens|models|models\/[^/]+)\/?)$/;

function tailOf(pathname: string): string {
  const version = pathname.lastIndexOf('/v1/');
  if (version !== -1) return pathname.slice(version + '/v1/'.length);
  return ROUTE.exec(pathname)?.[1] ?? pathname.slice(1);
}

function required(what: string): WorkflowContext {
  const rollout = currentRollout();
  if (rollout !== undefined) return rollout;
  throw new TrainyardError(
    'NO_ROLLOUT',
    `${what} was used where no rollout runs`,
    "use it inside the workflow's run, not while its module is loaded; there is one rollout for each task",
  );
}

/** Adds the header that names the thread, for requests outside the role's default thread. */
export function fetchInThread(fetch: typeof globalThis.fetch, thread: string): typeof globalThis.fetch {
  return (input, init) => {
    const headers = headersOf(input, init);
    headers.set('x-sample-id', thread);
    return fetch(input, { ...init, headers });
  };
}

function headersOf(...[input, init]: Parameters<typeof globalThis.fetch>): Headers {
  return new Headers(init?.headers ?? (input instanceof Request ? input.headers : undefined));
}

// What rollouts print, with `console` or on stdout and stderr, line by line, however many run at once. What is printed outside of them passes
// unchanged, as does what programs that a workflow starts print, and what is written to a descriptor directly.

/** Per rollout: lines, and characters of them together. */
const MOST_LINES = 1_000;
const MOST_CHARACTERS = 100_000;
/** With the line that says what was dropped. */
export const MOST_PRINTED = { lines: MOST_LINES + 1, characters: MOST_CHARACTERS + 100 } as const;

class Prints {
  readonly #keep: (line: string) => void;
  /** The last line of stdout and of stderr, which may go on, and the bytes of a character that is not complete. */
  readonly #begun = [0, 1].map(() => ({ pieces: [] as string[], size: 0, decoder: new TextDecoder() }));
  #lines = 0;
  #characters = 0;
  #dropped = 0;
  #isOver = false;

  constructor(keep: (line: string) => void) {
    this.#keep = keep;
  }

  /** `place`: 0 for stdout, 1 for stderr. */
  write(place: number, bytes: Uint8Array): void {
    const begun = this.#begun[place]!;
    const [first = '', ...others] = begun.decoder.decode(bytes, { stream: true }).split('\n');
    begun.pieces.push(first);
    begun.size += first.length;
    for (const line of others) {
      this.#complete(place);
      begun.pieces.push(line);
      begun.size = line.length;
    }
    if (begun.size > MOST_CHARACTERS) this.#complete(place);
  }

  end(): void {
    for (const [place, { size }] of this.#begun.entries()) if (size > 0) this.#complete(place);
    if (this.#dropped > 0 && !this.#isOver) this.#keep(`… and ${this.#dropped} more characters, which were not kept`);
    this.#isOver = true;
  }

  #complete(place: number): void {
    const begun = this.#begun[place]!;
    this.#line(begun.pieces.join(''));
    begun.pieces = [];
    begun.size = 0;
  }

  #line(line: string): void {
    const room = this.#lines < MOST_LINES ? MOST_CHARACTERS - this.#characters : 0;
    // All that follows a gap is dropped too: half a story would mislead.
    if (this.#dropped === 0 && room > 0 && !this.#isOver) this.#keep(line.slice(0, room));
    this.#dropped += room > 0 ? Math.max(0, line.length - room) : line.length + 1;
    this.#lines++;
    this.#characters += line.length;
  }
}

const encodingOf = (given: unknown): BufferEncoding => (Buffer.isEncoding(given as string) ? (given as BufferEncoding) : 'utf8');

const ofRollouts = new WeakMap<WorkflowContext, Prints>();

/** `keep` gets each line that is printed in this context, without its newline, until `endPrints`. */
export const keepPrintsOf = (ctx: WorkflowContext, keep: (line: string) => void): void =>
  void ofRollouts.set(ctx, new Prints(keep));

/** Keeps a last line without a newline. What is printed later is dropped. */
export const endPrints = (ctx: WorkflowContext): void => ofRollouts.get(ctx)?.end();

/** Keeps what rollouts print from the streams of this process until disposed. `passes`: it is written as well. */
export function catchPrints(passes = false): Disposable {
  let isOver = false;
  const caught = [process.stdout, process.stderr].map((stream, place) => {
    const original = stream.write as (...given: readonly unknown[]) => boolean;
    const write = (chunk: string | Uint8Array, encoding?: unknown, written?: unknown): boolean => {
      const rollout = isOver ? undefined : currentRollout();
      const prints = rollout && ofRollouts.get(rollout);
      prints?.write(place, typeof chunk === 'string' ? Buffer.from(chunk, encodingOf(encoding)) : chunk);
      if (prints === undefined || passes) return original.call(stream, chunk, encoding, written);
      const callback = typeof encoding === 'function' ? encoding : written;
      if (typeof callback === 'function') process.nextTick(() => callback());
      return true;
    };
    stream.write = write as typeof stream.write;
    return { stream, write, original };
  });
  return {
    [Symbol.dispose]: () => {
      isOver = true;
      // Whoever replaced it meanwhile goes on calling it.
      for (const { stream, write, original } of caught)
        if (stream.write === write) stream.write = original as typeof stream.write;
    },
  };
}
