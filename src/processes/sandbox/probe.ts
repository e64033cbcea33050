/**
 * Which levels of confinement this system offers, found by running a small program in each, strongest first, once per process. The program
 * checks its walls from inside: a level that starts programs and confines nothing does not count.
 */
import { spawnSync } from 'node:child_process';
import { messageOf } from '../../core/errors.ts';
import { byBubblewrap } from './bubblewrap.ts';
import { ENVIRONMENT } from './inside.ts';
import { type Ask, type Confine, ENDED } from './level.ts';
import { byNamespaces, type NamespaceMode } from './namespaces.ts';
import { byNothing } from './plain.ts';
import { wholeLimits } from './program.ts';

export type Level = 'bubblewrap' | 'namespaces' | 'none';

export interface MissingLevel {
  readonly level: Level;
  readonly why: string;
}

export interface FoundLevels {
  readonly level: Level;
  readonly confine: Confine;
  readonly missing: readonly MissingLevel[];
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

export function foundLevels(): FoundLevels {
  found ??= find();
  return found;
}

function find(): FoundLevels {
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
    return [
      { level: 'bubblewrap', confine: why },
      { level: 'namespaces', confine: why },
    ];
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
      env: { ...ENVIRONMENT, PATH: `/usr/local/sbin:/usr/sbin:/sbin:${ENVIRONMENT.PATH}` },
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
