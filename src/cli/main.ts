#!/usr/bin/env node
/** The `trainyard` command. Checks the Node version before it imports anything that an older Node cannot parse. */
const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
if (major < 22 || (major === 22 && minor < 19)) {
  console.error(
    `trainyard needs Node 22.19 or newer, this is ${process.versions.node}: install a newer Node (https://nodejs.org)`,
  );
  process.exitCode = 2;
} else {
  const { runCli } = await import('./program.ts');
  const code = await runCli(process.argv.slice(2));
  // Agents leave timers and sockets behind. The work is done, so wait only for our own output.
  process.stdout.write('', () => {
    const { code: why } = (process.stdout.errored ?? {}) as NodeJS.ErrnoException;
    const isLost = why !== undefined && why !== 'EPIPE' && why !== 'EIO';
    process.stderr.write(isLost ? `error: the output could not be written (${why})\n` : '', () =>
      process.exit(code || Number(isLost)),
    );
  });
}
