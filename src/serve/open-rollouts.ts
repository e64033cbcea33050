/**
 * The open rollouts of a server, on disk: one file for each, a line when it is opened and one for each answer, synced before the answer is
 * given. A server that starts again has them all, with their turns and keys. The file goes when its trajectory is in the store. A half
 * written last line was never acknowledged. Holds nothing in memory but where each file ends.
 */
import { randomBytes } from 'node:crypto';
import { mkdir, open, readdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { Mutex } from '../core/async.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { RolloutIdentity, Turn } from '../core/types.ts';
import type { LiveSession, RestoredSession, SessionJournal } from '../gateway/sessions.ts';
import { sync } from '../store/files.ts';
import { decodeTurn, encodeTurn } from '../store/records.ts';

interface OpenedLine {
  /** Name of the policy that samples it. */
  readonly policy: string;
  readonly identity: RolloutIdentity;
  readonly roles: LiveSession['spec']['roles'];
  readonly number: number;
  readonly remote: boolean;
}

interface AnswerLine {
  readonly key: string;
  readonly indexes: readonly number[];
  readonly turns: readonly TurnLine[];
}

/** `said`: what an agent flow said of it; only the flow routes know what it means. `ended`: the name that its trajectory was to have in the store. */
type Line =
  | { readonly opened: OpenedLine; readonly said?: object }
  | { readonly answer: AnswerLine }
  | { readonly said: object }
  | { readonly ended: string };

/** An encoded turn; bytes in base64. */
type TurnLine = Readonly<Record<keyof ReturnType<typeof encodeTurn>, string>>;

export interface OpenRollout extends OpenedLine, RestoredSession {
  readonly ended: string | undefined;
  /** By an agent flow; empty for other rollouts. */
  readonly said: readonly object[];
}

interface OpenFile {
  readonly writing: Mutex;
  /** Length of what is known to be whole. */
  size: number;
  turns: number;
}

const SECRET = 'secret';
const BYTES = ['promptIds', 'sampledIds', 'logprobs'] as const;

export class OpenRollouts implements SessionJournal {
  /** Signs keys, so that they outlive the process. */
  readonly secret: Uint8Array;
  readonly policy: string;
  readonly #folder: string;
  readonly #files = new Map<number, OpenFile>();

  private constructor(folder: string, policy: string, secret: Uint8Array) {
    this.policy = policy;
    this.#folder = folder;
    this.secret = secret;
  }

  /** Creates the folder if there is none. Nobody else may read it: the secret makes keys. */
  static async open(folder: string, policy: string): Promise<OpenRollouts> {
    await mkdir(folder, { recursive: true, mode: 0o700 });
    const path = join(folder, SECRET);
    const known = await readFile(path).catch((thrown: NodeJS.ErrnoException) => {
      if (thrown.code !== 'ENOENT') throw thrown;
    });
    if (known?.length === 32) return new OpenRollouts(folder, policy, known);
    const secret = randomBytes(32);
    await written(path, 0, secret);
    await sync(folder);
    return new OpenRollouts(folder, policy, secret);
  }

  /** What the last process left, in the order it was opened. Throws STORE_FAILED if a file is damaged. */
  async restore(): Promise<readonly OpenRollout[]> {
    const names = (await readdir(this.#folder)).filter((name) => /^\d+\.jsonl$/.test(name));
    const numbers = names.map((name) => Number.parseInt(name, 10));
    const found: OpenRollout[] = [];
    for (const number of numbers.toSorted((a, b) => a - b)) {
      const bytes = await readFile(this.#path(number));
      const size = bytes.lastIndexOf(10) + 1;
      const rollout = size === 0 ? undefined : this.#rolloutIn(number, bytes.toString('utf8', 0, size));
      if (rollout === undefined) await rm(this.#path(number));
      else {
        this.#files.set(number, { writing: new Mutex(), size, turns: rollout.turns.length });
        found.push(rollout);
      }
    }
    return found;
  }

  async opened({ spec: { identity, roles }, number, remote }: LiveSession, said?: () => object): Promise<void> {
    this.#files.set(number, { writing: new Mutex(), size: 0, turns: 0 });
    try {
      const line = { policy: this.policy, identity, roles, number, remote };
      await this.#append(number, () => ({ opened: line, ...(said && { said: said() }) }));
      await sync(this.#folder);
    } catch (thrown) {
      this.#files.delete(number);
      throw thrown;
    }
  }

  /** Opens the rollout with the first call. */
  async said(session: LiveSession, state: () => object): Promise<void> {
    if (this.#files.has(session.number)) await this.#append(session.number, () => ({ said: state() }));
    else await this.opened(session, state);
  }

  /** Also writes turns that were recorded before these: their own answers may still be on their way. */
  async answered({ number, turns: all }: LiveSession, key: string, turns: readonly Turn[]): Promise<void> {
    const indexes = turns.map(({ index }) => index);
    const most = Math.max(...indexes) + 1;
    await this.#append(number, (file) => ({ answer: { key, indexes, turns: all.slice(file.turns, most).map(lineOf) } }));
  }

  async ended(number: number, name: string): Promise<void> {
    await this.#append(number, () => ({ ended: name }));
  }

  async remove(number: number): Promise<void> {
    const file = this.#files.get(number);
    this.#files.delete(number);
    await file?.writing.run(() => rm(this.#path(number), { force: true }));
  }

  get size(): number {
    return this.#files.size;
  }

  #path(number: number): string {
    return join(this.#folder, `${number}.jsonl`);
  }

  /** Nothing if the rollout is not kept here. A failed write is written over by the next one. */
  async #append(number: number, lineFor: (file: OpenFile) => Line): Promise<void> {
    const file = this.#files.get(number);
    await file?.writing.run(async () => {
      // It ended meanwhile: its trajectory has everything.
      if (!this.#files.has(number)) return;
      const line = lineFor(file);
      if (file.size === 0 && !('opened' in line)) throw openFailed('its first line is missing');
      const bytes = Buffer.from(`${JSON.stringify(line)}\n`);
      try {
        await written(this.#path(number), file.size, bytes);
      } catch (cause) {
        throw openFailed(messageOf(cause), cause);
      }
      file.size += bytes.length;
      if ('answer' in line) file.turns += line.answer.turns.length;
    });
  }

  #rolloutIn(number: number, text: string): OpenRollout {
    try {
      const lines = text
        .trimEnd()
        .split('\n')
        .map((line) => JSON.parse(line) as Line);
      const { opened } = lines[0] as { readonly opened: OpenedLine };
      const answers = lines.flatMap((line) => ('answer' in line ? [line.answer] : []));
      const turns = answers.flatMap((answer) => answer.turns.map(turnIn));
      if (turns.some(({ index }, i) => index !== i)) throw new Error('its turns are not in order');
      const ended = lines.flatMap((line) => ('ended' in line ? [line.ended] : [])).at(-1);
      return {
        ...opened,
        number,
        ended,
        said: lines.flatMap((line) => ('said' in line && line.said) || []),
        turns,
        answers: answers.map(({ key, indexes }) => [key, indexes] as const),
      };
    } catch (cause) {
      const hint = 'restore the file from a copy, or move it away to start without this rollout';
      throw new TrainyardError('STORE_FAILED', `${this.#path(number)} is damaged: ${messageOf(cause)}`, { cause, hint });
    }
  }
}

function openFailed(why: string, cause?: unknown): TrainyardError {
  const hint = 'make room on the disk; what was answered before is kept';
  return new TrainyardError('STORE_FAILED', `an open rollout could not be kept: ${why}`, { cause, hint });
}

function lineOf(turn: Turn): TurnLine {
  const encoded = encodeTurn(turn);
  const bytes = BYTES.map((name) => [name, Buffer.from(encoded[name]).toString('base64')]);
  return { words: encoded.words, ...Object.fromEntries(bytes) };
}

function turnIn(line: TurnLine): Turn {
  const bytes = BYTES.map((name) => [name, Buffer.from(line[name], 'base64')]);
  return decodeTurn({ words: line.words, ...Object.fromEntries(bytes) });
}

/** Writes at this place, as the end of the file; on disk when it resolves. */
async function written(path: string, position: number, bytes: Uint8Array): Promise<void> {
  await using file = await open(path, 'a', 0o600);
  await file.truncate(position);
  await file.appendFile(bytes);
  await file.datasync();
}
