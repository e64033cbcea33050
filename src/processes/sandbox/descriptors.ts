/**
 * Descriptors that this process was started with and would hand on: whatever started it may have left them open, and they would lead out of
 * the sandbox. Node closes those below 16 only.
 */
import { openSync, readdirSync, readFileSync } from 'node:fs';

const CLOSED_ON_EXEC = 0o2000000;

let covered: readonly ('ignore' | number)[] | undefined;

/** What `stdio` of a spawned process has to hold from place `first` on, so that each of them leads nowhere. */
export function nothingFrom(first: number): readonly ('ignore' | number)[] {
  covered ??= cover(
    handedOn().filter((descriptor) => descriptor >= first),
    first,
  );
  return covered;
}

function cover(descriptors: readonly number[], first: number): readonly ('ignore' | number)[] {
  if (descriptors.length === 0) return [];
  const nowhere = openSync('/dev/null', 'r+');
  return Array.from({ length: Math.max(...descriptors) - first + 1 }, (_, at) =>
    descriptors.includes(at + first) ? nowhere : 'ignore',
  );
}

function handedOn(): readonly number[] {
  if (process.platform !== 'linux') return [];
  return readdirSync('/proc/self/fd')
    .map(Number)
    .filter((descriptor) => {
      try {
        const [, flags = '0'] = /^flags:\s*([0-7]+)/m.exec(readFileSync(`/proc/self/fdinfo/${descriptor}`, 'utf8')) ?? [];
        return (Number.parseInt(flags, 8) & CLOSED_ON_EXEC) === 0;
      } catch {
        return false;
      }
    });
}
