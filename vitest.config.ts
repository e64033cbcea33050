import { defaultExclude, defineConfig } from 'vitest/config';

const test = { pool: 'forks', testTimeout: 60_000, hookTimeout: 60_000 } as const;
const source = { conditions: ['source'] };
const own = { resolve: source, ssr: { resolve: source } };
const exclude = [...defaultExclude, 'test/packages/**', 'test/house/**'];
const execArgv = ['--conditions=source'];

export default defineConfig({
  test: {
    silent: 'passed-only',
    projects: [
      { ...own, test: { ...test, name: 'own', include: ['src/**/*.test.ts', 'test/**/*.test.ts'], exclude, execArgv } },
      { ...own, test: { ...test, name: 'house', include: ['test/house/**/*.test.ts'], execArgv } },
      // Without our condition: some of these packages have one of the same name, for sources that Node does not run.
      { test: { ...test, name: 'packages', maxConcurrency: 20, include: ['test/packages/**/*.test.ts'] } },
    ],
  },
});
