/**
 * Servers compared in slices of a second: all are up at once, each round asks every server once in random order, ratios are taken
 * inside a round and their median is the result. So whatever else the machine does meets all of them alike.
 *
 * Every request continues a conversation: its first turn was asked before the slice, turns 2 to 6 are measured, then comes the next
 * conversation. Bodies are the same for all servers but for the conversation's number in each question, so that nothing new was
 * tokenised before.
 */
import { type Answered, Connection } from './connection.ts';
import { FIRST_TURN, LAST_TURN, numbered } from './conversation.ts';
import type { Door } from './served.ts';
import type { Server } from './servers.ts';

export const AT_ONCE = 64;
const SLICE_MS = 1000;
const TURNS = LAST_TURN - FIRST_TURN;

/** A server, or one way of asking it. */
export interface Contender {
  readonly name: string;
  readonly server: Server;
  readonly bodies: readonly Buffer[];
  /** Request head up to the content's length. */
  headOf(door: Door): string;
  /** Conversations that have not begun; where a server knows none, the same door every time. */
  doors(count: number): Promise<readonly Door[]>;
  /** Whether turn 1 has to be asked before turn 2. */
  readonly remembers: boolean;
}

export interface Slice {
  readonly requests: number;
  readonly perSecond: number;
  /** Microseconds of the server's CPU. */
  readonly cpuPerRequest: number;
}

interface Conversation {
  readonly head: string;
  readonly number: number;
}

export class Lane {
  static #conversations = 0;
  readonly contender: Contender;
  #connections: readonly Connection[] = [];
  /** Conversations that a slice may use up, by what the last one did. */
  #enough = 200;

  constructor(contender: Contender) {
    this.contender = contender;
  }

  async slice(): Promise<Slice> {
    const { server } = this.contender;
    const conversations = await this.#prepare();
    const cpu = server.cpu;
    const start = performance.now();
    const until = start + SLICE_MS;
    let requests = 0;
    await Promise.all(
      this.#connections.map(async (connection) => {
        while (performance.now() < until) {
          const conversation = conversations.pop();
          if (conversation === undefined) return;
          for (let turn = FIRST_TURN + 1; turn <= LAST_TURN && performance.now() < until; turn++) {
            await this.#ask(connection, conversation, turn);
            requests++;
          }
        }
      }),
    );
    const seconds = (performance.now() - start) / 1000;
    this.#enough = Math.ceil((1.5 * requests) / TURNS) + AT_ONCE;
    this.#close();
    return { requests, perSecond: requests / seconds, cpuPerRequest: (server.cpu - cpu) / requests };
  }

  /** Milliseconds of each of so many requests, one after the other. */
  async latencies(count: number): Promise<readonly number[]> {
    this.#enough = Math.ceil(count / TURNS);
    const conversations = await this.#prepare();
    const latencies: number[] = [];
    for (const conversation of conversations) {
      for (let turn = FIRST_TURN + 1; turn <= LAST_TURN; turn++) {
        const start = performance.now();
        await this.#ask(this.#connections[0]!, conversation, turn);
        latencies.push(performance.now() - start);
      }
    }
    this.#close();
    return latencies;
  }

  /** Whether a reply says what the upstream said. */
  async check(expected: string): Promise<void> {
    const [conversation] = await this.#prepare();
    const { status, raw } = await this.#ask(this.#connections[0]!, conversation!, FIRST_TURN + 1);
    this.#close();
    const said = raw.includes('data: ') ? streamed(raw) : contentOf(raw);
    if (status !== 200 || said !== expected) throw new Error(`${this.contender.name} answered ${status}: ${raw.slice(0, 2000)}`);
  }

  #close(): void {
    for (const connection of this.#connections) connection.close();
  }

  /** Connections too are new in every slice: servers close those that wait while others are measured. */
  async #prepare(): Promise<Conversation[]> {
    const { contender } = this;
    this.#close();
    this.#connections = Array.from({ length: AT_ONCE }, () => new Connection(contender.server.port));
    const doors = await contender.doors(this.#enough);
    const conversations = doors.map((door) => ({ head: contender.headOf(door), number: Lane.#conversations++ }));
    if (!contender.remembers) return conversations;
    const left = [...conversations];
    await Promise.all(
      this.#connections.map(async (connection) => {
        for (let one = left.pop(); one !== undefined; one = left.pop()) await this.#ask(connection, one, FIRST_TURN);
      }),
    );
    return conversations;
  }

  async #ask(connection: Connection, { head, number }: Conversation, turn: number): Promise<Answered> {
    const answered = await connection.ask(head, numbered(this.contender.bodies[turn]!, number));
    if (answered.status !== 200)
      throw new Error(`${this.contender.name} answered ${answered.status}: ${answered.raw.slice(0, 2000)}`);
    return answered;
  }
}

function contentOf(raw: string): string | undefined {
  const body = JSON.parse(raw.slice(raw.indexOf('{'), raw.lastIndexOf('}') + 1)) as {
    choices?: { message: { content: string } }[];
  };
  return body.choices?.[0]?.message.content;
}

/** Chunk sizes stand on lines of their own; events are single lines here. */
function streamed(raw: string): string {
  if (!raw.includes('data: [DONE]')) throw new Error(`a stream without its end: ${raw.slice(-500)}`);
  const events = raw.split('\n').filter((line) => line.startsWith('data: {'));
  const chunks = events.map((line) => JSON.parse(line.slice('data: '.length)) as { choices: { delta: { content?: string } }[] });
  return chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('');
}

/** The slices of each lane, by round. */
export async function rounds(lanes: readonly Lane[], count: number): Promise<ReadonlyMap<Lane, readonly Slice[]>> {
  const measured = new Map(lanes.map((lane) => [lane, [] as Slice[]]));
  for (let round = 0; round < count; round++) {
    for (const lane of shuffled(lanes)) measured.get(lane)!.push(await lane.slice());
  }
  return measured;
}

function shuffled<T>(items: readonly T[]): readonly T[] {
  return items
    .map((item) => ({ item, place: Math.random() }))
    .sort((a, b) => a.place - b.place)
    .map(({ item }) => item);
}

export interface Spread {
  readonly median: number;
  readonly min: number;
  readonly max: number;
}

export function spreadOf(values: readonly number[]): Spread {
  return { median: median(values), min: Math.min(...values), max: Math.max(...values) };
}

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}
