import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';
import { defaultExclude, defineConfig } from 'vitest/config';
import { SkippedReporter } from './test/setup/skipped.ts';

// Timeouts only end what hangs: no test depends on the speed of the machine.
const test = {
  pool: 'forks',
  testTimeout: 300_000,
  hookTimeout: 300_000,
  expect: { poll: { timeout: 240_000, interval: 5 } },
  setupFiles: ['test/setup/property-seed.ts'],
};
/** The programs that tests start need not compile our source again each time. */
const env = { NODE_COMPILE_CACHE: fileURLToPath(new URL('node_modules/.cache/node', import.meta.url)) };
const source = { conditions: ['trainyard-source'] };
const own = { resolve: source, ssr: { resolve: source } };
const execArgv = ['--conditions=trainyard-source'];
const apart = ['test/packages/**', 'test/house/**'];
const FULL = '**/*.full.test.ts';
/** What frameworks would report to their makers. */
const quiet = { LANGSMITH_TRACING: 'false', OPENAI_AGENTS_DISABLE_TRACING: '1', MASTRA_TELEMETRY_DISABLED: '1' };

export default defineConfig({
  test: {
    silent: 'passed-only',
    reporters: ['default', new SkippedReporter()],
    maxWorkers: availableParallelism(),
    projects: [
      {
        ...own,
        test: {
          ...test,
          name: 'quick',
          include: ['{src,test}/**/*.test.ts'],
          exclude: [...defaultExclude, ...apart, FULL],
          execArgv,
          env,
          // One process runs many files, so that what they import is evaluated once: they leave nothing behind that others would see.
          isolate: false,
        },
      },
      { ...own, test: { ...test, name: 'full', include: [`{src,test}/${FULL}`], execArgv, env } },
      { ...own, test: { ...test, name: 'house', include: ['test/house/**/*.test.ts'], execArgv } },
      // As a user has them: resolved without our condition.
      { test: { ...test, name: 'packages', include: ['test/packages/**/*.test.ts'], maxConcurrency: 20, env: quiet } },
    ],
  },
});
