/**
 * One grader's process, seen from the pool: start it, ask it one thing at a time, kill it with everything it started.
 *
 * Contract: `grade` never rejects and ends within the deadline. After a timeout the process is killed and `usable` is false;
 * `gone` resolves when it has exited and its pipes are closed.
 *
 * The process leads its own process group, and the group is killed as one, so that what a grader spawned dies with it. A
 * grandchild that leaves the group on purpose (`detached`) is beyond reach. The environment is the parent's, whole: a grader is
 * the developer's own code and may need its keys. This is a boundary against failures, not a sandbox against hostile code; and
 * there is no memory limit besides Node's own heap limit.
 */
import { type ChildProcess, fork } from 'node:child_process';
import type { GraderInput } from '../core/contracts.ts';
import { describeThrown } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Grade } from '../core/types.ts';
import { timedOut } from './deadline.ts';
import { OutputTail } from './output-tail.ts';
import { killGroup } from './process-group.ts';
import { type FromChild, isFromChild, siblingScript, type ToChild } from './protocol.ts';

/** How long after its exit a process's last words are waited for: someone else may hold its pipes open. */
const DRAIN_MS = 250;

export interface GraderSource {
  readonly moduleUrl: string;
  readonly exportName: string;
}

type Answer =
  | { readonly kind: 'said'; readonly message: FromChild }
  | { readonly kind: 'late' }
  | { readonly kind: 'ended'; readonly how: string };

export class GraderProcess {
  readonly gone: Promise<void>;
  readonly #process: ChildProcess;
  readonly #stdout = new OutputTail();
  readonly #stderr = new OutputTail();
  #gradings = 0;
  #killed = false;
  #ended: string | undefined;
  #hear: ((answer: Answer) => void) | undefined;

  /** Throws what `fork` throws when the system refuses a process. */
  constructor(source: GraderSource) {
    this.#process = fork(siblingScript('child'), [source.moduleUrl, source.exportName], {
      detached: true,
      serialization: 'advanced',
      // The last one is the pipe that tells the child of our death.
      stdio: ['ignore', 'pipe', 'pipe', 'ipc', 'pipe'],
      ...inheritableArguments(),
    });
    this.#process.stdout?.setEncoding('utf8').on('data', (chunk: string) => this.#stdout.add(chunk));
    this.#process.stderr?.setEncoding('utf8').on('data', (chunk: string) => this.#stderr.add(chunk));
    this.#process.on('message', (message) => {
      if (isFromChild(message)) this.#hear?.({ kind: 'said', message });
    });
    this.gone = this.#untilGone();
  }

  /** Whether it can be asked. */
  get usable(): boolean {
    return !this.#killed && this.#running && this.#process.connected;
  }

  /** Whether it was ever given a grading. */
  get wasAsked(): boolean {
    return this.#gradings > 0;
  }

  /** How it ended, with its last words; undefined while it runs. */
  get ending(): string | undefined {
    return this.#ended;
  }

  /** Waits until the module is imported. Throws GRADER_FAILED, GRADER_NOT_FOUND or GRADER_TIMEOUT, the process then being killed. */
  async ready(deadlineMs: number): Promise<void> {
    const answer = await this.#answer(deadlineMs);
    if (answer.kind === 'said' && answer.message.kind === 'ready') return;
    void this.kill();
    throw startFailure(answer, deadlineMs);
  }

  async grade(input: GraderInput, deadlineMs: number): Promise<Grade> {
    this.#gradings += 1;
    const id = this.#gradings;
    // What an earlier grading printed says nothing about this one.
    this.#stdout.clear();
    this.#stderr.clear();
    try {
      // A process that cannot be written to is about to end, and is killed so that it surely does.
      this.#process.send({ kind: 'grade', id, input } satisfies ToChild, (error) => error && void this.kill());
    } catch (thrown) {
      return {
        kind: 'failed',
        code: 'GRADER_FAILED',
        message: `the input cannot be sent to the grader: ${describeThrown(thrown)}`,
      };
    }
    const answer = await this.#answer(deadlineMs, id);
    if (answer.kind === 'said' && answer.message.kind === 'answer') return answer.message.grade;
    void this.kill();
    if (answer.kind === 'late') return timedOut(deadlineMs);
    const how = answer.kind === 'ended' ? answer.how : 'spoke out of turn';
    return { kind: 'failed', code: 'GRADER_FAILED', message: `the grader's process ${how} before it answered` };
  }

  /** Kills the process group; resolves when the process is gone. Idempotent. */
  kill(): Promise<void> {
    // Never after its exit: the number could be another process's by then.
    if (this.#running) killGroup(this.#process.pid!);
    this.#killed = true;
    return this.gone;
  }

  get #running(): boolean {
    return this.#process.pid !== undefined && this.#process.exitCode === null && this.#process.signalCode === null;
  }

  /** What comes first: a message (with `id`, the answer to that grading), the end of the process, or the deadline. */
  #answer(deadlineMs: number, id?: number): Promise<Answer> {
    return new Promise((resolve) => {
      if (this.#ended !== undefined) {
        resolve({ kind: 'ended', how: this.#ended });
        return;
      }
      const hear = (answer: Answer): void => {
        const stray =
          answer.kind === 'said' && id !== undefined && !(answer.message.kind === 'answer' && answer.message.id === id);
        // A process that exited is not late: its end is being read, and is the better answer.
        const overtaken = answer.kind === 'late' && !this.#running;
        if (stray || overtaken || this.#hear !== hear) return;
        clearTimeout(timer);
        this.#hear = undefined;
        resolve(answer);
      };
      // When our own event loop was held up, an answer may already be waiting in the channel: it is read before the immediate.
      const timer = setTimeout(() => setImmediate(hear, { kind: 'late' } satisfies Answer), deadlineMs);
      this.#hear = hear;
    });
  }

  async #untilGone(): Promise<void> {
    const child = this.#process;
    // All listeners before the first wait: the events may come in one go.
    const silent = Promise.all([once(child, 'close'), once(child, 'disconnect')]);
    const how = await new Promise<string>((resolve) => {
      child.once('exit', (code, signal) => resolve(signal === null ? `exited with code ${code}` : `was killed by ${signal}`));
      child.on('error', (error) => child.pid === undefined && resolve(`could not be started (${error.message})`));
    });
    // What it had started may outlive it in the group.
    if (child.pid !== undefined) killGroup(child.pid);
    // Its pipes and the channel are read to their ends: an answer sent before the exit counts.
    await within(DRAIN_MS, silent);
    for (const stream of child.stdio) stream?.destroy();
    const lastWords = this.#stderr.lastLines() || this.#stdout.lastLines();
    this.#ended = lastWords === '' ? how : `${how}, having printed:\n${lastWords}\n`;
    this.#hear?.({ kind: 'ended', how: this.#ended });
  }
}

/** `events.once` would reject on 'error', which is not the end of a process. */
function once(child: ChildProcess, event: 'close' | 'disconnect'): Promise<void> {
  return new Promise((resolve) => void child.once(event, () => resolve()));
}

async function within(ms: number, awaited: Promise<unknown>): Promise<void> {
  const { promise: over, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, ms);
  await Promise.race([awaited, over]);
  clearTimeout(timer);
}

/**
 * `fork` passes this process's own Node arguments on, so that type stripping and `--conditions` hold in the child too; only an
 * inspector is left out, because its port is taken and Node would refuse to start.
 */
function inheritableArguments(): { readonly execArgv?: string[] } {
  const inspector = /^--inspect(-brk|-wait)?(=|$)/;
  if (!process.execArgv.some((argument) => inspector.test(argument))) return {};
  return { execArgv: process.execArgv.filter((argument) => !inspector.test(argument)) };
}

function startFailure(answer: Answer, deadlineMs: number): TrainyardError {
  const hint =
    'the module that exports the grader is imported by every grading process: check that it can be imported on its own';
  if (answer.kind === 'late') {
    return new TrainyardError('GRADER_TIMEOUT', `the grader's module was not imported within ${deadlineMs} ms`, { hint });
  }
  if (answer.kind === 'said' && answer.message.kind === 'unusable') {
    return new TrainyardError(answer.message.code, answer.message.message, { hint });
  }
  const how = answer.kind === 'ended' ? answer.how : 'spoke out of turn';
  return new TrainyardError('GRADER_FAILED', `the grader's process ${how} while importing its module`, { hint });
}
