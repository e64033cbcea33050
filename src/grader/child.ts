/**
 * The program of a grader's process: imports the user's module, says that it is ready, then answers one grading after another.
 *
 * Arguments: the module's URL and the name of the exported grader. Talks over IPC only. Ends with its parent. The exit code of
 * this process never means a reward: only an answer on the channel does.
 */
import { Worker } from 'node:worker_threads';
import type { Grader } from '../core/contracts.ts';
import { describeThrown } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { asGrader, moduleOf } from '../core/lower.ts';
import { callGrader } from './call.ts';
import { endOwnGroup } from './process-group.ts';
import { type FromChild, insideGraderProcess, siblingScript, type ToChild } from './protocol.ts';

/** A process that is being killed closes its pipes a little before its children get another parent. */
const PARENT_DEATH_MS = 50;

const [moduleUrl, exportName] = process.argv.slice(2) as [string, string];
const say = takeChannel();
Object.assign(globalThis, { [insideGraderProcess]: true });

// Before the user's module: importing it may already hang.
endWithParent();

const grader = await importGrader().catch(refuse);
process.on('message', async (message) => {
  const { id, input } = message as ToChild;
  say({ kind: 'answer', id, grade: await callGrader(grader, input) });
});
say({ kind: 'ready' });

/** Takes `process.send` away from the user's module, whose libraries might take it as a sign that someone listens to them. */
function takeChannel(): (message: FromChild, sent?: () => void) => void {
  const send = process.send?.bind(process);
  if (send === undefined) throw new Error('this program is started by the grader pool, with an IPC channel');
  delete process.send;
  return (message, sent) => send(message, undefined, {}, sent);
}

/** However the parent's death is noticed first, what the grader spawned must not be left behind. */
function endWithParent(): void {
  const parent = process.ppid;
  process.on('disconnect', endOwnGroup);
  process.on('exit', () => {
    // It may be the parent's death that ended this process, through a pipe that broke: give that death a moment to be complete.
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, PARENT_DEATH_MS);
    if (process.ppid !== parent) endOwnGroup();
  });
  // The thread comes up by itself, even if this one never returns to its event loop; waiting for it would only delay the start.
  new Worker(siblingScript('parent-watch')).unref();
}

/** Exits once the message is out; until then nothing goes on. */
function refuse(error: unknown): Promise<never> {
  const { code, message } = error as TrainyardError;
  say({ kind: 'unusable', code, message }, () => process.exit(1));
  return new Promise<never>(() => {});
}

async function importGrader(): Promise<Grader> {
  let exports: Readonly<Record<string, unknown>>;
  try {
    exports = await import(moduleUrl);
  } catch (thrown) {
    throw new TrainyardError('GRADER_FAILED', `the grader's module ${moduleUrl} cannot be imported: ${describeThrown(thrown)}`);
  }
  const found = asGrader(exports[exportName], moduleOf(exports));
  if (found !== undefined) return found;
  const names = Object.keys(exports).join(', ') || 'nothing';
  throw new TrainyardError(
    'GRADER_NOT_FOUND',
    `export ${JSON.stringify(exportName)} of ${moduleUrl} is not a grader; it exports ${names}`,
  );
}
