/**
 * Trains a small agent through a Tinker server in a process of its own, and kills both with SIGKILL again and again, together or one of
 * them; each is started again where it was. In the end the weights and the optimizer state that the server kept for the last step
 * must be, byte for byte, those of a run that nobody disturbed, and the history must be clean.
 *
 *     node --conditions=trainyard-source test/chaos/tinker-kill.ts --kills 15 --seed 1 [--staleness 2] [--checkpoint-every 3] [--kl 0.05]
 *
 * A run that ends by itself because the server forgot its model four times in a row is taken up again, and counted. Exits 1 if
 * anything differs.
 */
import { existsSync } from 'node:fs';
import { readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { randomStream } from '../../src/engines/embedded/random.ts';
import { BASE_MODEL } from '../../src/settings/settings.ts';
import { smallHome } from '../e2e/small-run.ts';
import { API_KEY, type ServerProcess, startServer } from '../e2e/tinker-server.ts';
import type { KillRun } from '../fixtures/kill-run.ts';
import {
  compare,
  isAlive,
  judge,
  type KillOutcome,
  type KillSettings,
  linesIn,
  type Plan,
  runToTheEnd,
  start,
  tellOutcome,
} from './kill.ts';

export interface TinkerKillSettings extends KillSettings {
  readonly checkpointEvery: number;
  readonly kl: number;
}

export interface TinkerKillOutcome extends Omit<KillOutcome, 'kills'> {
  readonly kills: { readonly server: number; readonly run: number };
  /** How often the run ended by itself, and was taken up again. */
  readonly gaveUp: number;
}

/** Longest time that the server is away, in milliseconds: some waits are tried out, no patience is. */
const AWAY_MS = 1500;

export async function tinkerKillRun({ kills, seed, ...settings }: TinkerKillSettings): Promise<TinkerKillOutcome> {
  const home = await smallHome();
  process.env['TINKER_API_KEY'] = API_KEY;
  let server = await startServer(home.dir);
  const restart = async (): Promise<void> => {
    server = await startServer(home.dir, server.port);
  };
  try {
    const sizes = { steps: 5 + Math.ceil(kills / 3), group: 4, groupsPerStep: 2, evalEvery: 3, ...settings };
    const play = (name: string): KillRun => ({
      request: {
        ...{ entry: home.entry, run: join(home.dir, name) },
        ...{ engine: 'tinker', model: BASE_MODEL, baseURL: server.baseURL, ...sizes },
      },
      history: join(home.dir, `${name}.jsonl`),
    });
    const [undisturbed, disturbed] = [play('undisturbed'), play('disturbed')];
    const startedAt = performance.now();
    await runToTheEnd(undisturbed);
    const plan = { kills, seed, milliseconds: performance.now() - startedAt, lines: linesIn(undisturbed) };
    const counts = await disturb(disturbed, plan, { current: () => server, restart });
    await runToTheEnd(disturbed);
    const differences = settings.staleness === 0 ? await compare(undisturbed, disturbed, stateIn(home.dir)) : [];
    return { ...counts, report: await judge(disturbed, settings.staleness), differences };
  } finally {
    await server.kill();
    await home.remove();
  }
}

interface Restartable {
  current(): ServerProcess;
  restart(): Promise<void>;
}

/** As many stretches as there are kills, and one more to end in; each kill strikes somewhere in its own. */
async function disturb(run: KillRun, { kills, seed, milliseconds, lines }: Plan, server: Restartable) {
  const random = randomStream(seed);
  const stretch = lines / (kills + 1);
  const struck = { server: 0, run: 0 };
  let gaveUp = 0;
  let running = start(run);
  for (let kill = 0; kill < kills; kill++) {
    const target = Math.ceil((kill + random.uniform()) * stretch);
    while (isAlive(running.child) && linesIn(run) < target) await sleep(5);
    await Promise.race([running.ended, sleep(random.uniform() * (milliseconds / lines) * stretch)]);
    // In the first quarter both, then the run, else the server; half of those who are left alone have to wait for the other.
    const die = random.uniform();
    const [hitsRun, hitsServer] = [die < 0.5, die < 0.25 || die >= 0.5];
    if (hitsRun) running.child.kill('SIGKILL');
    if (hitsServer) {
      await server.current().kill();
      struck.server++;
      const back = sleep(random.uniform() * AWAY_MS).then(() => server.restart());
      if (random.uniform() < 0.5 || !hitsRun) await back;
      else {
        running = await again(run, running);
        struck.run++;
        await back;
        continue;
      }
    }
    if (!isAlive(running.child) || hitsRun) {
      const { signal, code, stderr } = await running.ended;
      if (signal === 'SIGKILL') struck.run++;
      else if (/POLICY_LOST/.test(stderr)) gaveUp++;
      else if (code !== 0) throw new Error(`after ${kill + 1} kills the run ended with ${code}: ${stderr}`);
      if (code !== 0) running = await again(run, running);
    }
  }
  const { signal, code, stderr } = await running.ended;
  if (code !== 0 && /POLICY_LOST/.test(stderr)) gaveUp++;
  else if (code !== 0) throw new Error(`the run ended with ${code ?? signal}: ${stderr}`);
  return { kills: struck, gaveUp };
}

async function again(run: KillRun, before: ReturnType<typeof start>): Promise<ReturnType<typeof start>> {
  await before.ended;
  // Killed before it was a run: nothing was begun, and the command asks for the directory to be removed.
  if (!existsSync(join(run.request.run, 'run.json'))) await rm(run.request.run, { recursive: true, force: true });
  return start(run);
}

/** Where the server keeps what a checkpoint names. */
function stateIn(home: string): (checkpoint: string) => Promise<string> {
  return async (checkpoint) => {
    const { path } = JSON.parse(await readFile(join(checkpoint, 'tinker.json'), 'utf8')) as { readonly path: string };
    return join(home, 'state', path.slice('tinker://'.length));
  };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const number = (standard: string) => ({ type: 'string', default: standard }) as const;
  const { values } = parseArgs({
    options: { kills: number('15'), seed: number('1'), staleness: number('0'), 'checkpoint-every': number('1'), kl: number('0') },
  });
  const [wanted, seed, staleness] = [Number(values.kills), Number(values.seed), Number(values.staleness)];
  const [checkpointEvery, kl] = [Number(values['checkpoint-every']), Number(values.kl)];
  const { kills, gaveUp, ...outcome } = await tinkerKillRun({ kills: wanted, seed, staleness, checkpointEvery, kl });
  const settings = `seed ${seed}, staleness ${staleness}, checkpoint every ${checkpointEvery}, kl ${kl}`;
  tellOutcome(outcome, `${kills.server} kills of the server, ${kills.run} of the run, ${gaveUp} times given up`, settings);
}
