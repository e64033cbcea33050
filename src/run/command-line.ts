/** Commands that a run tells people to type. Written for a shell that finds `trainyard`; the command line adapts that to how it was called. */
import { relative } from 'node:path';
import type { Unusual } from '../core/events.ts';

export function resumeCommand(run: string, verb: 'train' | 'eval' = 'train'): string {
  return `trainyard ${verb} --resume ${shellWord(run)}`;
}

/** `unusual`: what the run was told that is not the default, as far as an evaluation depends on it. */
export function measureCommand(entry: string, model: string, { flow, flows, heldOut, turns, trainable }: Unusual = {}): string {
  const flags = { model, flow, flows, 'held-out': heldOut, turns, trainable: trainable?.join(',') };
  const given = Object.entries(flags).flatMap(([name, value]) =>
    value === undefined ? [] : [`--${name} ${shellWord(String(value))}`],
  );
  // The list of flows is the entry where there is no other.
  return ['trainyard eval', ...(entry === flows ? [] : [shellWord(entry)]), ...given].join(' ');
}

/** A path as an argument that a shell takes as one word. */
export function shellWord(path: string): string {
  return /^[\w@%+=:,./-]+$/.test(path) ? path : `'${path.replaceAll("'", `'\\''`)}'`;
}

/** A path as a person in this folder would write it. */
export function shortPath(path: string): string {
  const near = relative('.', path);
  return near === '' || near.startsWith('..') ? path : near;
}
