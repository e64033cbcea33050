/**
 * Hosts on one machine: network namespaces, joined by a bridge in the first of them and by nothing else. Only those made here are ever
 * addressed. Making them needs root and `ip`.
 */
import { spawnSync } from 'node:child_process';

export interface Hosts extends Disposable {
  /** Of the first host, where the bridge is. */
  readonly address: string;
  /** What begins a command that runs on a host. */
  within(host: number): readonly string[];
  /** Takes the line between a host and the bridge away, or brings it back. */
  link(host: number, state: 'up' | 'down'): void;
}

const ADDRESS = (host: number): string => `10.77.0.${host + 1}`;

function ip(...args: readonly string[]): void {
  const { status, stderr, error } = spawnSync('ip', args, { encoding: 'utf8' });
  if (status !== 0) throw new Error(`ip ${args.join(' ')}: ${error?.message ?? stderr.trim()}`);
}

/** Undefined if there can be hosts here. */
export function hostsMissing(): string | undefined {
  if (process.getuid?.() !== 0) return 'network namespaces, which only root can make';
  try {
    makeHosts(2)[Symbol.dispose]();
    return undefined;
  } catch (thrown) {
    return `network namespaces: ${(thrown as Error).message}`;
  }
}

export function makeHosts(count: number): Hosts {
  const names = Array.from({ length: count }, (_, host) => `trainyard-${process.pid}-${host}`);
  const remove = (): void => {
    for (const name of names) spawnSync('ip', ['netns', 'delete', name]);
  };
  process.once('exit', remove);
  try {
    for (const name of names) {
      ip('netns', 'add', name);
      ip('-n', name, 'link', 'set', 'lo', 'up');
    }
    const first = names[0]!;
    ip('-n', first, 'link', 'add', 'bridge', 'type', 'bridge');
    ip('-n', first, 'address', 'add', `${ADDRESS(0)}/24`, 'dev', 'bridge');
    ip('-n', first, 'link', 'set', 'bridge', 'up');
    for (const [host, name] of [...names.entries()].slice(1)) {
      ip('link', 'add', 'line', 'netns', name, 'type', 'veth', 'peer', 'name', `line-${host}`, 'netns', first);
      ip('-n', first, 'link', 'set', `line-${host}`, 'master', 'bridge', 'up');
      ip('-n', name, 'address', 'add', `${ADDRESS(host)}/24`, 'dev', 'line');
      ip('-n', name, 'link', 'set', 'line', 'up');
    }
    return {
      address: ADDRESS(0),
      within: (host) => ['ip', 'netns', 'exec', names[host]!],
      link: (host, state) => ip('-n', first, 'link', 'set', `line-${host}`, state),
      [Symbol.dispose]: () => {
        process.off('exit', remove);
        remove();
      },
    };
  } catch (thrown) {
    remove();
    throw thrown;
  }
}
