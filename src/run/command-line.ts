/** Commands that a run tells people to type. Written for a shell that finds `trainyard`; the command line adapts that to how it was called. */

import { relative } from 'node:path';

export function resumeCommand(run: string): string {
  return `trainyard train --resume ${shellWord(run)}`;
}

export function measureCommand(
  entry: string,
  model: string,
  { heldOut, turns }: { readonly heldOut?: string | undefined; readonly turns?: number | undefined } = {},
): string {
  const tasks = heldOut === undefined ? '' : ` --held-out ${shellWord(heldOut)}`;
  const calls = turns === undefined ? '' : ` --turns ${turns}`;
  return `trainyard eval ${shellWord(entry)} --model ${shellWord(model)}${tasks}${calls}`;
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
