/**
 * Completes package-lock.json with optional packages of other platforms.
 *
 * npm leaves them out when the registry at hand does not carry them, and `npm ci` then refuses the lock everywhere. Each entry
 * added here has the version its parent asks for and the platform its name says; it has no integrity, because nobody here has
 * seen the file. Run it after every `npm install` that touched a lock: the project's, or the one in the folder that is named.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { resolve } from 'node:path';

type Entry = {
  version?: string;
  dev?: boolean;
  optional?: boolean;
  os?: string[];
  cpu?: string[];
  libc?: string[];
  optionalDependencies?: Record<string, string>;
};
const OS = ['android', 'darwin', 'freebsd', 'linux', 'win32', 'openharmony', 'sunos', 'netbsd', 'openbsd', 'aix'];
const CPU = ['arm64', 'arm', 'x64', 'ia32', 'ppc64', 's390x', 'riscv64', 'loong64', 'wasm32', 'mips64el'];

const file = resolve(process.argv[2] ?? resolve(import.meta.dirname, '..'), 'package-lock.json');
const lock = JSON.parse(readFileSync(file, 'utf8')) as { packages: Record<string, Entry> };
let added = 0;
for (const parent of Object.values(lock.packages)) {
  for (const [name, version] of Object.entries(parent.optionalDependencies ?? {})) {
    const key = `node_modules/${name}`;
    if (lock.packages[key] !== undefined) continue;
    const words = name.split(/[/-]/);
    const libc = words.includes('musl') ? ['musl'] : words.includes('gnu') ? ['glibc'] : undefined;
    lock.packages[key] = {
      version,
      optional: true,
      ...(parent.dev ? { dev: true } : {}),
      os: words.filter((w) => OS.includes(w)),
      cpu: words.filter((w) => CPU.includes(w)),
      ...(libc ? { libc } : {}),
    };
    if (lock.packages[key].os?.length === 0) delete lock.packages[key].os;
    if (lock.packages[key].cpu?.length === 0) delete lock.packages[key].cpu;
    added++;
  }
}
lock.packages = Object.fromEntries(Object.entries(lock.packages).sort(([a], [b]) => (a < b ? -1 : 1)));
writeFileSync(file, `${JSON.stringify(lock, null, 2)}\n`);
console.log(`${added} entries added`);
