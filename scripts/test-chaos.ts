/**
 * Trainings under faults: `npm run test:chaos -- [--seed N] [--faults N] [--minutes N] [--store file|postgres|URL] [--workers N]`. What happens
 * goes to standard error; the last line, on standard output, is one JSON object. Exits 1 unless nothing was lost, duplicated or torn and the
 * weights are those of an undisturbed run.
 *
 * By default, seeds alternate between a SQLite file with rollouts in the process that trains, and a PostgreSQL server that is started for this,
 * with three external workers. `--store` takes one of them, or a server that is there; `--workers 0`: none. A failing seed is tried again with
 * the same flags and `--seed`, and with `--faults 10` it is that run alone. test/chaos/faults.ts says which faults there are.
 */
import { parseArgs } from 'node:util';
import { chaos, FILES } from '../test/chaos/chaos.ts';
import { postgresSite } from '../test/chaos/postgres-site.ts';
import { postgresMissing } from '../test/postgres/server.ts';

const number = (standard: string) => ({ type: 'string', default: standard }) as const;
const { values } = parseArgs({
  options: { seed: number('1'), faults: number('200'), minutes: number('28'), workers: number('3'), store: { type: 'string' } },
});
const [seed, faults, minutes, workers] = [values.seed, values.faults, values.minutes, values.workers].map(Number) as [
  number,
  number,
  number,
  number,
];
const say = (line: string): void => void process.stderr.write(`${line}\n`);
const { store } = values;
const isBoth = store === undefined && postgresMissing === undefined;
if (store === undefined && postgresMissing !== undefined) say(`without external workers, for want of ${postgresMissing}`);
const url = store === undefined || store === 'postgres' ? undefined : store;
async function main(): Promise<number> {
  await using database = isBoth || (store !== undefined && store !== 'file') ? await postgresSite(workers, url) : undefined;
  const sites = database === undefined ? [FILES] : isBoth ? [FILES, database] : [database];
  const outcome = await chaos({ seed, faults, minutes, say }, sites);
  for (const problem of outcome.problems) say(problem);
  console.log(JSON.stringify(outcome));
  const { lost, duplicated, torn, weightsEqual } = outcome;
  return lost + duplicated + torn === 0 && weightsEqual && outcome.faults > 0 ? 0 : 1;
}

// A connection that was cut must not keep the process.
process.exit(await main());
