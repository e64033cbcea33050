/**
 * A way to confine a program, as a command line: the parts that all ways share. Each way ends in the same shell lines, which run inside,
 * write the program's files, say on descriptor 3 that the program begins, and how it ended.
 *
 * Descriptor 3 is what tells a sandbox that could not be set up from a program that failed: without `ready` nothing of the program ran. The
 * program gets neither 3 nor 4, from which its files are read.
 */
import type { SandboxLimits, SandboxProgram } from './program.ts';

export interface Confined {
  readonly command: string;
  readonly args: readonly string[];
  /** Afterwards, where something is left outside. */
  readonly remove?: () => void;
}

export interface Ask extends Pick<SandboxProgram, 'program' | 'args' | 'files' | 'readable'> {
  readonly limits: SandboxLimits;
  /** Whether each process's address space is limited, for want of a control group. Node does not start with little of it. */
  readonly limitsAddressSpace: boolean;
}

/** One way to confine, known to work here. */
export type Confine = (ask: Ask) => Confined;

export const READY = 'ready';
export const ENDED = 'ended';

/** Behind the last file's name and size. */
const END_OF_FILES = '--';

/** `launch` is a function that each way to confine defines: it starts the program with what rights and limits it has. */
export const BEGIN = `
while [ "$1" != ${END_OF_FILES} ]; do
  case $1 in */*) mkdir -p "\${1%/*}" ;; esac
  head -c "$2" <&4 >"$1"
  shift 2
done
shift
exec 4<&-
echo ${READY} >&3
set +e
launch "$@" 3>&-
echo "${ENDED} $?" >&3
exit 0
`;

/** What `BEGIN` reads its files and its command from. */
export function beginArgs({ program, args = [], files = {} }: Pick<Ask, 'program' | 'args' | 'files'>): readonly string[] {
  const named = Object.entries(files).flatMap(([name, text]) => [name, String(Buffer.byteLength(text))]);
  return [...named, END_OF_FILES, program, ...args];
}

export function filesContent(files: Readonly<Record<string, string>> = {}): string {
  return Object.values(files).join('');
}

const BYTES_PER_MB = 2 ** 20;

/** A command that limits what follows it. */
export function limited({ limits, limitsAddressSpace }: Ask): string {
  const { cpuSeconds, memoryMb, processes, fileMb } = limits;
  return [
    'prlimit --core=0',
    // The first ends it with a signal of its own, the second for certain.
    `--cpu=${cpuSeconds}:${cpuSeconds + 1}`,
    `--nproc=${processes}`,
    `--fsize=${fileMb * BYTES_PER_MB}`,
    '--nofile=256',
    ...(limitsAddressSpace ? [`--as=${memoryMb * BYTES_PER_MB}`] : []),
    '--',
  ].join(' ');
}

/** No rights, and no way to get any. */
export const POWERLESS = 'setpriv --no-new-privs --inh-caps=-all --bounding-set=-all --';
