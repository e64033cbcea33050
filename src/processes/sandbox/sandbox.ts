/**
 * `openSandbox`: a place to run code that nobody vouches for, with the strongest walls this system offers, saying which these are.
 *
 * `bubblewrap` and `namespaces` are sandboxes: no network, no home, no environment, its own processes, a read-only system, and one scratch
 * directory that is gone afterwards. `none` is not: a process with limits, which can read and write what its user can. Levels are found by
 * running a small program in each, strongest first, once per process. It checks its walls from inside: a level that starts programs and
 * confines nothing does not count.
 *
 * What no level here holds: a hole in the kernel, which all share; what can be learned from the time things take.
 */
import { spawnSync } from 'node:child_process';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import { limitMemory } from '../memory-limit.ts';
import { type Ask, byBubblewrap, byNothing, type Confine, type Confined, ENDED, SET_UP_ENVIRONMENT } from './confine.ts';
import { type ConfinedProcess, startConfined } from './confined-process.ts';
import { byNamespaces, type NamespaceMode } from './namespaces.ts';
import { checkFileNames, type SandboxProgram, type SandboxResult, wholeLimits } from './program.ts';

const BYTES_PER_MB = 2 ** 20;
/** Processes of the set-up itself. */
const OWN_PROCESSES = 8;

export type Level = 'bubblewrap' | 'namespaces' | 'none';

interface MissingLevel {
  readonly level: Level;
  readonly why: string;
}

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
  found ??= findLevel();
  const { confine, missing } = found;
  if (level === 'required' && found.level === 'none') throw missingSandbox(missing);
  const start = (program: SandboxProgram): ConfinedProcess => {
    const limits = wholeLimits(program.limits);
    checkFileNames(program.files ?? {});
    const memory = limitMemory({ bytes: limits.memoryMb * BYTES_PER_MB, processes: limits.processes + OWN_PROCESSES });
    const limitsAddressSpace = memory === undefined && !/(^|\/)node$/.test(program.program);
    const ask: Ask = { ...program, limits, limitsAddressSpace };
    let confined: Confined | undefined;
    try {
      confined = confine(ask);
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
    missing,
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

// ── which levels there are ──────────────────────────────────────────────────────────────────────────────────────────────

interface FoundLevels extends Pick<Sandbox, 'level' | 'missing'> {
  readonly confine: Confine;
}

const PROBE_MS = 10_000;

/** Nothing of anyone's is there, nothing can be written but the scratch directory, no interface but its own, no rights. */
const WALLS_STAND = `
[ ! -e /root ] && [ ! -e /home ] && [ ! -e /var ] || exit 41
{ true >/probe || true >/usr/bin/probe || true >/etc/probe; } 2>/dev/null && exit 42
true >./probe || exit 43
if [ -e /proc/self/status ]; then
  [ "$(grep -c : /proc/net/dev)" -le 1 ] || exit 44
  grep -q '^CapEff:[^1-9a-f]*$' /proc/self/status || exit 45
fi
exit 0
`;

const WALLS: Readonly<Record<number, string>> = {
  41: 'folders of the machine can be seen from inside',
  42: 'the system can be written to from inside',
  43: 'the scratch directory cannot be written to',
  44: 'there is a network inside',
  45: 'the program keeps rights inside',
};

let found: FoundLevels | undefined;

function findLevel(): FoundLevels {
  const missing: MissingLevel[] = [];
  for (const { level, confine } of candidates()) {
    const why = typeof confine === 'string' ? confine : whyNot(confine);
    if (why === undefined) return { level, confine: confine as Confine, missing: missing.filter((one) => one.level !== level) };
    missing.push({ level, why });
  }
  return { level: 'none', confine: byNothing, missing };
}

interface Candidate {
  readonly level: Level;
  /** Or why it need not be tried. */
  readonly confine: Confine | string;
}

function candidates(): readonly Candidate[] {
  if (process.platform !== 'linux') {
    const why = `${process.platform} has no namespaces`;
    return (['bubblewrap', 'namespaces'] as const).map((level) => ({ level, confine: why }));
  }
  const isRoot = process.getuid?.() === 0;
  const modes: readonly NamespaceMode[] = isRoot ? ['root', 'root, without a user namespace', 'user'] : ['user'];
  const namespaces = modes.map((mode): Candidate => ({ level: 'namespaces', confine: (ask) => byNamespaces(mode, ask) }));
  if (isRoot) return [{ level: 'bubblewrap', confine: 'not used as root, whose user number it would keep' }, ...namespaces];
  const bubblewrap = [true, false].map(
    (disables): Candidate => ({ level: 'bubblewrap', confine: (ask) => byBubblewrap(disables, ask) }),
  );
  return [...bubblewrap, ...namespaces];
}

/** Undefined where the level holds. */
function whyNot(confine: Confine): string | undefined {
  const ask: Ask = { program: 'sh', args: ['-c', WALLS_STAND], limits: wholeLimits(), limitsAddressSpace: false };
  try {
    const { command, args } = confine(ask);
    const tried = spawnSync(command, args, {
      cwd: '/',
      env: SET_UP_ENVIRONMENT,
      stdio: ['ignore', 'pipe', 'pipe', 'pipe', 'pipe'],
      timeout: PROBE_MS,
      killSignal: 'SIGKILL',
      encoding: 'utf8',
    });
    if (tried.error !== undefined) return messageOf(tried.error);
    const code = new RegExp(`^${ENDED} (\\d+)$`, 'm').exec(String(tried.output[3] ?? ''))?.[1];
    if (code === '0') return undefined;
    return WALLS[Number(code)] ?? (tried.stderr.trim().split('\n')[0] || `it ended with ${tried.status ?? tried.signal}`);
  } catch (thrown) {
    return messageOf(thrown);
  }
}
