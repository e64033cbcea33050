/**
 * `trainyard serve` serves the policy at a URL and shows each captured turn. `trainyard tinker` serves the Tinker API on a model folder.
 * Both show refused requests. `trainyard skyrl` starts another project's Tinker server. All print their address and return the exit code.
 */
import { once } from 'node:events';
import { styleText } from 'node:util';
import { printableLine } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { type RunEvent, warnBy } from '../core/events.ts';
import { turnSummary } from '../core/turns.ts';
import type { Turn } from '../core/types.ts';
import { hubNameOf, resolveModel } from '../engines/model-path.ts';
import type { Failure } from '../http/refusal.ts';
import { keptStore } from '../run/run-store.ts';
import type { Served, ServeSettings } from '../serve/serve.ts';
import { SERVE_DEFAULTS, SKYRL_DEFAULTS, TINKER_DEFAULTS } from '../settings/server-defaults.ts';
import { freeRun, isApi, shellWord, shortPath } from '../settings/settings.ts';
import { exitAfter, guarded, type Interrupts } from './guarded.ts';
import { describe, type Say, saying } from './output/print.ts';
import { turnText } from './output/print-rollout.ts';
import { asCalled, count } from './output/text.ts';

/** A disconnected Tinker client repeats all of its requests, so identical refusals within this time are shown once. */
const QUIET_MS = 10_000;
const MOST_KINDS = 1000;

type TinkerFlags = Readonly<Record<'model' | 'host' | 'state', string>> &
  Readonly<Record<'port' | 'threads', number>> & { readonly apiKey: string | undefined };
type SkyrlFlags = Readonly<Record<'port' | 'sequences' | 'rows' | 'loraRank' | 'context' | 'callTokens', number>> &
  Readonly<Record<'model' | 'state', string>> & { readonly cpu: boolean; readonly python?: string };

type Refusal = Pick<Failure, 'status' | 'code' | 'message'>;

export async function serveCommand(flags: Partial<ServeSettings> & { readonly json: boolean }): Promise<number> {
  const { serve } = await import('../serve/serve.ts');
  const { json, ...given } = flags;
  const settings: ServeSettings = {
    model: undefined,
    temperature: undefined,
    entry: undefined,
    tasks: undefined,
    maxGroups: undefined,
    groupTimeout: undefined,
    ...SERVE_DEFAULTS,
    run: given.run ?? freeRun('serve'),
    ...given,
    token: given.token ?? process.env['TRAINYARD_TOKEN'],
  };
  const { run } = settings;
  const kept = (): string => keptStore(run).url ?? run;
  let turns = 0;
  return await serving(json, async (say, stopped, interrupts) => {
    let isDrained = true;
    const onTurn = (rolloutId: string, turn: Turn): void => {
      turns++;
      const summary = turnSummary(turn);
      const line = `${styleText('dim', printableLine(rolloutId))} ${turnText(summary).trimStart()}`;
      say([line], { type: 'turn', rolloutId, ...summary });
    };
    const onFailure = (refusal: Refusal, path: string): void => say(...refused(refusal, path));
    {
      const warn = warnBy((event) => say(describe(event), event));
      await using served = await serve(settings, { onTurn, onFailure, warn });
      const { origin, baseURL, apiKey, adminKey, flowKey, name: model, restored } = served;
      const at = { origin, baseURL, apiKey, adminKey, flowKey, model, run };
      say(welcome(settings, served), { type: 'serving', ...at, restored, ...keptStore(run) });
      await stopped();
      if (interrupts.by !== 'SIGINT') isDrained = await served.drain(interrupts.stop);
    }
    const look = ['Look at them:', `  ${asCalled(`trainyard show ${shellWord(run)}`)}`];
    say(['', `${count(turns, 'turn')} kept in ${kept()}.`, ...(turns > 0 ? look : [])], { type: 'served', turns, run });
    return isDrained;
  });
}

export async function tinkerCommand(flags: Partial<TinkerFlags> & { readonly json: boolean }): Promise<number> {
  const { serveTinker } = await import('../engines/tinker/server/server.ts');
  const { json, ...given } = flags;
  const chosenKey = given.apiKey ?? (process.env['TINKER_API_KEY'] || undefined);
  const settings: TinkerFlags = { ...TINKER_DEFAULTS, ...given, apiKey: chosenKey };
  const { model, state } = settings;
  const shown = new Map<string, number>();
  return await serving(json, async (say, stopped) => {
    const onFailure = (refusal: Refusal, path: string): void => {
      const kind = `${refusal.status} ${refusal.code} ${path}`;
      const isNews = performance.now() - (shown.get(kind) ?? Number.NEGATIVE_INFINITY) > QUIET_MS;
      shown.set(kind, performance.now());
      if (shown.size > MOST_KINDS) shown.clear();
      if (isNews || json) say(...refused(refusal, path));
    };
    await using served = await serveTinker(settings, onFailure);
    const { origin, apiKey, baseModel } = served;
    say(tinkerWelcome(settings, served), { type: 'serving', origin, baseURL: origin, apiKey, baseModel, model, state });
    await stopped();
    const last = `Stopped. Saved weights are in ${state}; a server started with the same --state has them, and the same key.`;
    say(['', last], { type: 'served', state });
  });
}

export async function skyrlCommand(flags: Partial<SkyrlFlags> & { readonly json: boolean }): Promise<number> {
  const { ANY_KEY, startSkyrl } = await import('../engines/tinker/skyrl/skyrl-server.ts');
  const { json, model: named, ...given } = flags;
  if (named === undefined) {
    const hint = 'give the folder of the model to train: --model ./qwen3-0.6b';
    throw new TrainyardError('USAGE', 'missing required option: --model', hint);
  }
  return await serving(json, async (say, stopped, { finish: stop }) => {
    const model = await resolveModel(named);
    const settings: SkyrlFlags = { ...SKYRL_DEFAULTS, state: freeRun('skyrl'), ...given, model };
    await using served = await startSkyrl(settings, stop, (line) => say([line], { type: 'progress', message: line }));
    const { baseURL } = served;
    say(skyrlWelcome(settings, baseURL, ANY_KEY), { type: 'serving', baseURL, apiKey: ANY_KEY, ...settings });
    await Promise.race([served.ended, stopped()]);
    say(['', 'Stopped. What was at the server is gone; a new start begins afresh.'], { type: 'served', state: settings.state });
  });
}

/** Runs until a signal ends it. `work` returns false if what was in flight did not end in time. */
export async function serving(
  json: boolean,
  work: (say: Say, stopped: () => Promise<unknown>, interrupts: Interrupts) => Promise<unknown>,
): Promise<number> {
  const say = saying(json);
  const emit = (event: RunEvent): void => {
    if (event.type === 'warning' && event.code !== 'INTERRUPTED') say(describe(event), event);
  };
  return await guarded(emit, { steps: 'drains', serves: true }, async (interrupts) => {
    const { finish } = interrupts;
    const isDrained = await work(say, async () => finish.aborted || (await once(finish, 'abort')), interrupts);
    return isDrained === false ? exitAfter(interrupts) : 0;
  });
}

function refused({ status, code, message }: Refusal, path: string): Parameters<Say> {
  const line = `${styleText('yellow', `refused ${status} ${code}`)} ${printableLine(path.slice(0, 100))}: ${printableLine(message)}`;
  return [[line], { type: 'refused', status, code, message, path }];
}

function welcome({ temperature, engine, run }: ServeSettings, served: Served): readonly string[] {
  const { origin, baseURL, apiKey, adminKey, flowKey, name, restored } = served;
  const { url, id } = keptStore(run);
  const kept = url === undefined ? run : `${url}, under the id ${id},`;
  const sampling = temperature === undefined && isApi(engine) ? 'as agents ask it' : `at temperature ${temperature ?? 1}`;
  return [
    `Serving ${styleText('bold', printableLine(engine === 'embedded' ? (hubNameOf(name) ?? shortPath(name)) : name))} ${sampling}. Point an agent at it; everything it samples is captured.`,
    '',
    `  OPENAI_BASE_URL=${baseURL}`,
    `  OPENAI_API_KEY=${apiKey}`,
    `  ANTHROPIC_BASE_URL=${baseURL.replace(/\/v1$/, '')}`,
    `  ANTHROPIC_API_KEY=${apiKey}`,
    '',
    'That is one rollout. Another one, with a URL and key of its own, for each run of your agent:',
    '',
    `  curl -X POST -H "authorization: Bearer ${adminKey}" ${origin}/sessions`,
    '',
    ...(flowKey === undefined ? [] : flowLines(origin, flowKey)),
    ...(restored === 0
      ? []
      : [`The last server left ${count(restored, 'open rollout')} to go on with, under the same keys.`, '']),
    `Any model name will do. Rollouts are kept in ${kept} when they end; Ctrl-C ends them all. If the server stops in another way, start it`,
    'with the same --run: open rollouts go on.',
    '',
  ];
}

function flowLines(origin: string, flowKey: string): readonly string[] {
  return [
    'Agent flows, which build their own steps or say their own rewards, have a key of their own:',
    '',
    `  curl -X POST -H "authorization: Bearer ${flowKey}" ${origin}/init_trajectory`,
    '',
  ];
}

function tinkerWelcome(
  { model, state }: TinkerFlags,
  { origin, apiKey, baseModel }: Readonly<Record<'origin' | 'apiKey' | 'baseModel', string>>,
): readonly string[] {
  return [
    `Serving ${styleText('bold', shortPath(model))} by the Tinker API. Point a Tinker program at it, with base_model "${baseModel}".`,
    '',
    `  export TINKER_BASE_URL=${origin}`,
    `  export TINKER_API_KEY=${apiKey}`,
    '',
    'All parameters are trained, whatever LoRA settings a program asks for.',
    `Saved weights are kept in ${state}; everything else ends with Ctrl-C.`,
    '',
  ];
}

function skyrlWelcome(
  { model, sequences, loraRank, callTokens }: SkyrlFlags,
  baseURL: string,
  apiKey: string,
): readonly string[] {
  const flags = `--concurrency ${sequences} --lora-rank ${loraRank} --call-tokens ${callTokens}`;
  return [
    `Ready: SkyRL serves ${styleText('bold', hubNameOf(model) ?? shortPath(model))} by the Tinker API. In another terminal:`,
    '',
    `  export TINKER_BASE_URL=${baseURL}`,
    `  export TINKER_API_KEY=${apiKey}`,
    `  ${asCalled(`trainyard train my-agent.ts --engine tinker --model ${shellWord(shortPath(model))} ${flags}`)}`,
    '',
    'LoRA needs its own learning rate, such as --learning-rate 3e-4. Ctrl-C stops the server.',
    '',
  ];
}
