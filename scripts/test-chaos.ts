/**
 * Trainings under faults: `npm run test:chaos -- [--seed N] [--faults N] [--minutes N] [--store postgres|URL] [--workers N]`. What happens goes to standard error; the last line, on
 * standard output, is one JSON object. Exits 1 unless nothing was lost, duplicated or torn and the weights are those of an undisturbed run.
 *
 * The store is a SQLite file; with `--store postgres` a PostgreSQL server that is started for this, with a URL that of a server that is there.
 * A failing seed is tried again with `--seed`, and with `--faults 10` it is that run alone. test/chaos/chaos.ts says which faults there are.
 */
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { openSqliteStore } from '../src/store/sqlite.ts';
import { chaos } from '../test/chaos/chaos.ts';
import { postgresSite, type StoreSite } from '../test/chaos/postgres-site.ts';

const number = (standard: string) => ({ type: 'string', default: standard }) as const;
const { values } = parseArgs({
  options: { seed: number('1'), faults: number('200'), minutes: number('30'), workers: number('0'), store: { type: 'string' } },
});
const [seed, faults, minutes, workers] = [values.seed, values.faults, values.minutes, values.workers].map(Number) as [
  number,
  number,
  number,
  number,
];
const say = (line: string): void => void process.stderr.write(`${line}\n`);
const files: StoreSite = {
  ...{ storeFlags: [], faults: [], open: (run) => openSqliteStore(join(run, 'store.sqlite')) },
  [Symbol.asyncDispose]: async () => {},
};
const { store } = values;
const site = store === undefined ? files : await postgresSite(store === 'postgres' ? undefined : store);
const outcome = await chaos({ seed, faults, minutes, workers, say }, site).finally(() => site[Symbol.asyncDispose]());
for (const problem of outcome.problems) say(problem);
console.log(JSON.stringify(outcome));
const { lost, duplicated, torn, weightsEqual } = outcome;
process.exit(lost + duplicated + torn === 0 && weightsEqual && outcome.faults > 0 ? 0 : 1);
