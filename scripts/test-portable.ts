/**
 * Runs the quick tier, or the test files that are named, as on a system without /proc, `ps` and bubblewrap. On Linux bubblewrap itself builds
 * that view: an empty /proc, and programs that cannot be started. It says nothing about paths, signals and file locks of macOS or Windows; there
 * the same tests run as they are.
 */
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const HIDDEN = ['/usr/bin/bwrap', '/usr/local/bin/bwrap', '/usr/bin/ps'];
const vitest = fileURLToPath(new URL('../node_modules/vitest/vitest.mjs', import.meta.url));
const files = process.argv.slice(2);

const view = ['--dev-bind', '/', '/', '--tmpfs', '/proc', '--die-with-parent'];
const hidden = HIDDEN.filter((path) => existsSync(path)).flatMap((path) => ['--ro-bind', '/dev/null', path]);
// By its full path: without /proc, Node cannot find out where it is.
const command = [process.execPath, vitest, 'run', '--project', 'quick', ...files];
const [program = '', ...args] = process.platform === 'linux' ? ['bwrap', ...view, ...hidden, '--', ...command] : command;
const { status, error } = spawnSync(program, args, { stdio: 'inherit' });
if (error !== undefined)
  throw new Error('bubblewrap is needed to hide /proc and itself: apt-get install bubblewrap', { cause: error });
process.exitCode = status ?? 1;
