import { defaultExclude, defineConfig } from 'vitest/config';

const test = { pool: 'forks', testTimeout: 60_000, hookTimeout: 60_000, setupFiles: ['test/setup/property-seed.ts'] };
const source = { conditions: ['trainyard-source'] };
const own = { resolve: source, ssr: { resolve: source } };
const exclude = [...defaultExclude, 'test/packages/**', 'test/house/**'];
const execArgv = ['--conditions=trainyard-source'];
/** What frameworks would report to their makers. */
const quiet = { LANGSMITH_TRACING: 'false', OPENAI_AGENTS_DISABLE_TRACING: '1', MASTRA_TELEMETRY_DISABLED: '1' };

export default defineConfig({
  test: {
    silent: 'passed-only',
    projects: [
      { ...own, test: { ...test, name: 'own', include: ['src/**/*.test.ts', 'test/**/*.test.ts'], exclude, execArgv } },
      { ...own, test: { ...test, name: 'house', include: ['test/house/**/*.test.ts'], execArgv } },
      // As a user has them: resolved without our condition.
      { test: { ...test, name: 'packages', include: ['test/packages/**/*.test.ts'], maxConcurrency: 20, env: quiet } },
    ],
  },
});
