/** What is done to the processes of a run, their clocks, their disk and their lines. Each says what it did, or that there was nothing to do it to. */
import { setTimeout as sleep } from 'node:timers/promises';
import type { randomStream } from '../../src/engines/embedded/random.ts';
import { type FaultProxy, lineFaults } from './fault-proxy.ts';
import type { Command, Role } from './role.ts';
import type { SmallDisk } from './small-disk.ts';

export type Random = ReturnType<typeof randomStream>;

/** Resolves when it is over, with what it was. Undefined if there was nothing to do it to. */
export type Fault = (random: Random) => Promise<string | undefined>;

/** In tests leases last two seconds: what is done to a worker may take longer, and its rollouts then run elsewhere. */
export const LEASE_SECONDS = 2;
export const LONGEST_FAULT_MS = 1_200;
const LONGEST_ABSENCE_MS = 2_000 * LEASE_SECONDS;
const LONGEST_CLOCK_MS = 2_000;
const DAY_MS = 86_400_000;

/** Clocks that processes are started with. */
export type Clocks = Map<Role, Partial<Command>>;

/** `kind`: what the roles are, of which one is drawn each time. */
export function processFaults(kind: string, roles: readonly Role[], clocks: Clocks): readonly Fault[] {
  const one = (random: Random): Role => roles[Math.floor(random.uniform() * roles.length)]!;
  const longest = kind === 'worker' ? LONGEST_ABSENCE_MS : LONGEST_FAULT_MS;
  const send =
    (signal: NodeJS.Signals, what: string): Fault =>
    async (random) =>
      one(random).signal(signal) ? `${what} ${kind}` : undefined;
  return [
    send('SIGKILL', 'kill'),
    send('SIGTERM', 'end'),
    async (random) => {
      const role = one(random);
      if (!role.signal('SIGSTOP')) return undefined;
      await sleep(random.uniform() * longest);
      return role.signal('SIGCONT') ? `stop ${kind}` : undefined;
    },
    // A process does not learn a new clock while it runs: it is killed, and the next one has it, and jumps once more.
    async (random) => {
      const role = one(random);
      const off = (): number => Math.round((random.uniform() - 0.5) * 2 * DAY_MS);
      const env = { CHAOS_CLOCK: JSON.stringify([off(), Math.round(random.uniform() * LONGEST_CLOCK_MS), off()]) };
      clocks.set(role, { options: ['--import', new URL('../fixtures/clock-jump.ts', import.meta.url).href], env });
      return role.signal('SIGKILL') ? `clock of ${kind} jumps` : undefined;
    },
  ];
}

export function diskFault(disk: SmallDisk): Fault {
  return async (random) => {
    disk.fill();
    await sleep(random.uniform() * LONGEST_FAULT_MS);
    disk.free();
    return 'disk full';
  };
}

/** Of `whose` process to the store; one of the lines is drawn each time. */
export function lineFault(whose: string, proxies: readonly FaultProxy[]): Fault {
  const longest = whose === 'worker' ? LONGEST_ABSENCE_MS : LONGEST_FAULT_MS;
  return async (random) => {
    const proxy = proxies[Math.floor(random.uniform() * proxies.length)]!;
    const { mode, cut, milliseconds } = lineFaults(Math.floor(random.uniform() * 2 ** 31), longest).next().value;
    proxy.set(mode);
    if (cut) proxy.cut();
    await sleep(milliseconds);
    proxy.set({ kind: 'pass' });
    return `line of ${whose}: ${mode.kind === 'pass' ? 'cut' : mode.kind}`;
  };
}
