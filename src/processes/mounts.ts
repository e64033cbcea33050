/** What is mounted where, as the kernel lists it. Linux only; elsewhere nothing is listed. */
import { readFileSync } from 'node:fs';

interface Mount {
  readonly at: string;
  readonly isReadOnly: boolean;
}

/** In the order they were mounted. */
export function mounts(): readonly Mount[] {
  let listed = '';
  try {
    listed = readFileSync('/proc/self/mountinfo', 'utf8');
  } catch {
    return [];
  }
  return listed.split('\n').flatMap((line) => {
    const [, , , , at, options = ''] = line.split(' ');
    return at === undefined ? [] : [{ at: unescaped(at), isReadOnly: options.split(',').includes('ro') }];
  });
}

/** Spaces and the like are written as octal numbers. */
function unescaped(path: string): string {
  return path.replace(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 8)));
}
