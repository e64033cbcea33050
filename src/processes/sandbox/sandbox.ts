/**
 * `openSandbox`: a place to run code that nobody vouches for, with the strongest walls this system offers, saying which these are.
 *
 * `bubblewrap` and `namespaces` are sandboxes: no network, no home, no environment, its own processes, a read-only system, and one scratch
 * directory that is gone afterwards. `none` is not: a process with limits, which can read and write what its user can. Levels are found by
 * really running something in them, once per process, before anything else is run.
 *
 * What no level here holds: a hole in the kernel, which all share; what can be learned from the time things take.
 */
import { messageOf, TrainyardError } from '../../core/errors.ts';
import { limitMemory } from '../memory-limit.ts';
import { type ConfinedProcess, startConfined } from './confined-process.ts';
import type { Ask, Confined } from './level.ts';
import { foundLevels, type Level, type MissingLevel } from './probe.ts';
import { checkFileNames, type SandboxProgram, type SandboxResult, wholeLimits } from './program.ts';

const BYTES_PER_MB = 2 ** 20;
/** Processes of the set-up itself. */
const OWN_PROCESSES = 8;

export interface SandboxOptions {
  /** `required`, the default: throws SANDBOX_MISSING where there is none. `best`: takes what there is, also `none`. */
  readonly level?: 'required' | 'best';
}

export interface Sandbox {
  readonly level: Level;
  /** Whether the level deserves the name. */
  readonly isSandbox: boolean;
  /** The levels above it, and why they are not there. */
  readonly missing: readonly MissingLevel[];
  /** Runs a program to its end. Rejects only with SANDBOX_FAILED: nothing of the program ran then. */
  run(program: SandboxProgram & { readonly stdin?: string }): Promise<SandboxResult>;
  /** Starts a program that is talked to. Throws SANDBOX_FAILED, too. */
  start(program: SandboxProgram): ConfinedProcess;
}

/** Throws SANDBOX_MISSING. */
export function openSandbox({ level = 'required' }: SandboxOptions = {}): Sandbox {
  if (level !== 'required' && level !== 'best') {
    throw new TrainyardError('USAGE', `a sandbox's level is 'required' or 'best', found ${JSON.stringify(level)}`);
  }
  const found = foundLevels();
  if (level === 'required' && found.level === 'none') throw missingSandbox(found.missing);
  const start = (program: SandboxProgram): ConfinedProcess => {
    const limits = wholeLimits(program.limits);
    checkFileNames(program.files ?? {});
    const memory = limitMemory({ bytes: limits.memoryMb * BYTES_PER_MB, processes: limits.processes + OWN_PROCESSES });
    const limitsAddressSpace = memory === undefined && !/(^|\/)node$/.test(program.program);
    const ask: Ask = { ...program, limits, limitsAddressSpace };
    let confined: Confined | undefined;
    try {
      confined = found.confine(ask);
      return startConfined({ ...program, confined, limits, memory });
    } catch (thrown) {
      void memory?.remove();
      confined?.remove?.();
      throw new TrainyardError('SANDBOX_FAILED', `the sandbox could not be set up: ${messageOf(thrown)}`, { cause: thrown });
    }
  };
  return {
    level: found.level,
    isSandbox: found.level !== 'none',
    missing: found.missing,
    start,
    async run({ stdin = '', ...program }) {
      const running = start(program);
      const chunks: Buffer[] = [];
      running.stdout.on('data', (chunk: Buffer) => chunks.push(chunk)).resume();
      running.stdin.end(stdin);
      const end = await running.ended;
      return { ...end, stdout: Buffer.concat(chunks).toString('utf8'), stderr: running.stderr, ranMs: running.ranMs };
    },
  };
}

function missingSandbox(missing: readonly MissingLevel[]): TrainyardError {
  const reasons = missing.map(({ level, why }) => `${level}: ${why}`).join('; ');
  return new TrainyardError('SANDBOX_MISSING', `a sandbox is required, and this system offers none (${reasons})`, {
    hint: 'on Linux install bubblewrap or util-linux (unshare, setpriv, prlimit) and allow user namespaces, or run as root in a container that may make namespaces; with `best` code runs without a sandbox',
  });
}
