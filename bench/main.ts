/**
 * Runs one benchmark by name: `npm run bench -- <name> [flags]`. With `--json` or `--against` the last line of
 * the output is its results as JSON.
 *
 * Benchmarks print what they measure while they run and judge nothing: results go into LOG.md by hand, the bad ones too.
 */
import { parseArgs } from 'node:util';

export interface Flags {
  readonly threads: number | undefined;
  /** Whom to measure beside ours, and the Python that has it; for `llm`. */
  readonly against?: string | undefined;
  readonly python?: string | undefined;
  /** Assumptions of `scale`, such as `gradeMs=1.5,storeMs=0.4`. */
  readonly assume?: string | undefined;
}

/** What a benchmark file exports. */
export interface Benchmark {
  run(flags: Flags): Promise<Readonly<Record<string, unknown>>>;
}

const BENCHMARKS: Readonly<Record<string, () => Promise<Benchmark>>> = {
  async: () => import('./async.ts'),
  gateway: () => import('./gateway.ts'),
  grader: () => import('./grader.ts'),
  llm: () => import('./llm.ts'),
  nn: () => import('./nn.ts'),
  queue: () => import('./queue.ts'),
  rollouts: () => import('./rollouts.ts'),
  scale: () => import('./scale-simulation.ts'),
  soak: () => import('./soak.ts'),
  step: () => import('./step.ts'),
  store: () => import('./store.ts'),
  tinker: () => import('./tinker.ts'),
  view: () => import('./view.ts'),
  workers: () => import('./workers.ts'),
};

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    json: { type: 'boolean', default: false },
    threads: { type: 'string' },
    against: { type: 'string' },
    python: { type: 'string' },
    assume: { type: 'string' },
  },
});
const name = positionals[0] ?? '';
const load = Object.hasOwn(BENCHMARKS, name) ? BENCHMARKS[name] : undefined;
if (load === undefined) {
  console.error(`found ${JSON.stringify(name)}, expected one of: ${Object.keys(BENCHMARKS).join(', ')}`);
  process.exitCode = 2;
} else {
  const benchmark = await load();
  const { threads, against, python, assume } = values;
  const results = await benchmark.run({ threads: threads === undefined ? undefined : Number(threads), against, python, assume });
  if (values.json || against !== undefined) console.log(JSON.stringify({ benchmark: name, ...results }));
  // Clients keep their connections open for a while.
  process.exit(0);
}
