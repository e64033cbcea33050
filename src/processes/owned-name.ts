/**
 * Names of folders that end with the process that made them, so that what a killed process left can be told from what is in use and be
 * removed by a later one.
 *
 * Process numbers mean something in one namespace only, so that is part of the name. A number that was given again to another process
 * keeps what its first owner left, for as long as that one runs.
 */
import { readlinkSync } from 'node:fs';

/** `what` says what the folder is for. */
export function ownedName(what: string, rest: number | string): string {
  return `${prefix(what)}${process.pid}-${rest}`;
}

/** Whether it is a name of this kind whose process is gone. */
export function isAbandoned(what: string, name: string): boolean {
  if (!name.startsWith(prefix(what))) return false;
  const owner = Number(name.slice(prefix(what).length).split('-')[0]);
  return Number.isSafeInteger(owner) && owner > 0 && owner !== process.pid && !isAlive(owner);
}

function prefix(what: string): string {
  return `${what}-${namespace()}-`;
}

function namespace(): string {
  try {
    return /\d+/.exec(readlinkSync('/proc/self/ns/pid'))?.[0] ?? '0';
  } catch {
    return '0';
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
