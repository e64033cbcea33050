/**
 * Runs one benchmark by name: `npm run bench -- <name> [flags]`. With `--json` the last line of the output is its results as JSON.
 *
 * Benchmarks print what they measure while they run and judge nothing: results go into LOG.md by hand, the bad ones too.
 */
import { parseArgs } from 'node:util';

/** What a benchmark file exports. */
export interface Benchmark {
  run(flags: { readonly threads: number | undefined }): Promise<Readonly<Record<string, unknown>>>;
}

const BENCHMARKS: Readonly<Record<string, () => Promise<Benchmark>>> = {
  gateway: () => import('./gateway.ts'),
  grader: () => import('./grader.ts'),
  nn: () => import('./nn.ts'),
  rollouts: () => import('./rollouts.ts'),
  step: () => import('./step.ts'),
  tinker: () => import('./tinker.ts'),
};

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { json: { type: 'boolean', default: false }, threads: { type: 'string' } },
});
const name = positionals[0] ?? '';
const load = Object.hasOwn(BENCHMARKS, name) ? BENCHMARKS[name] : undefined;
if (load === undefined) {
  console.error(`found ${JSON.stringify(name)}, expected one of: ${Object.keys(BENCHMARKS).join(', ')}`);
  process.exitCode = 2;
} else {
  const benchmark = await load();
  const results = await benchmark.run({ threads: values.threads === undefined ? undefined : Number(values.threads) });
  if (values.json) console.log(JSON.stringify({ benchmark: name, ...results }));
  // Clients keep their connections open for a while.
  process.exit(0);
}
