/** `trainyard serve`: the policy at a URL; says where, and shows each turn as it is captured. Returns the exit code. */
import { once } from 'node:events';
import { styleText } from 'node:util';
import type { RunEvent } from '../core/events.ts';
import { turnSummary } from '../core/turns.ts';
import type { Turn } from '../core/types.ts';
import type { Failure } from '../http/refusal.ts';
import { shellWord, shortPath } from '../run/command-line.ts';
import { type Served, type ServeSettings, serve } from '../run/serve.ts';
import { EVAL_DEFAULTS, freeRun, TRAIN_DEFAULTS } from '../run/settings.ts';
import { guarded } from './guard.ts';
import { describe } from './lines.ts';
import { asCalled, count } from './phrases.ts';
import { printable } from './screen/width.ts';
import { turnText } from './turn-text.ts';

export const SERVE_DEFAULTS = {
  model: EVAL_DEFAULTS.model,
  host: '127.0.0.1',
  port: 0,
  token: undefined,
  temperature: TRAIN_DEFAULTS.temperature,
  threads: EVAL_DEFAULTS.threads,
  seed: EVAL_DEFAULTS.seed,
  entry: undefined,
  tasks: undefined,
  group: TRAIN_DEFAULTS.group,
  maxGroups: undefined,
  groupTimeout: undefined,
} as const satisfies Omit<ServeSettings, 'run'>;

export async function serveCommand(flags: Partial<ServeSettings> & { readonly json: boolean }): Promise<number> {
  const { json, ...given } = flags;
  const token = given.token ?? process.env['TRAINYARD_TOKEN'];
  const settings: ServeSettings = { ...SERVE_DEFAULTS, run: given.run ?? freeRun('serve'), ...given, token };
  const say = (lines: readonly string[], value: object): void => console.log(json ? JSON.stringify(value) : lines.join('\n'));
  const emit = (event: RunEvent): void => {
    if (event.type === 'warning' && event.code !== 'INTERRUPTED') say(describe(event, ''), event);
  };
  let turns = 0;
  const onTurn = (rolloutId: string, turn: Turn): void => {
    turns++;
    const summary = turnSummary(turn);
    say([`${styleText('dim', printable(rolloutId))} ${turnText(summary).trimStart()}`], { type: 'turn', rolloutId, ...summary });
  };
  const onFailure = ({ status, code, message }: Failure, path: string): void => {
    const line = `${styleText('yellow', `refused ${status} ${code}`)} ${printable(path.slice(0, 100))}: ${printable(message)}`;
    say([line], { type: 'refused', status, code, message, path });
  };
  return await guarded(emit, { steps: false, serves: true }, async ({ stop }) => {
    {
      await using served = await serve(settings, { onTurn, onFailure });
      const { origin, baseURL, apiKey, adminKey, flowKey } = served;
      const { model, run } = settings;
      say(welcome(settings, served), { type: 'serving', origin, baseURL, apiKey, adminKey, flowKey, model, run });
      if (!stop.aborted) await once(stop, 'abort');
    }
    const kept = `${count(turns, 'turn')} kept in ${settings.run}.`;
    const look = ['Look at them:', `  ${asCalled(`trainyard show ${shellWord(settings.run)}`)}`];
    say(['', kept, ...(turns > 0 ? look : [])], { type: 'served', turns, run: settings.run });
    return 0;
  });
}

function welcome(
  { model, temperature, run }: ServeSettings,
  { origin, baseURL, apiKey, adminKey, flowKey }: Served,
): readonly string[] {
  return [
    `Serving ${styleText('bold', shortPath(model))} at temperature ${temperature}. Point an agent at it; everything it samples is captured.`,
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
    'Agent flows, which build their own steps or say their own rewards, have a key of their own:',
    '',
    `  curl -X POST -H "authorization: Bearer ${flowKey}" ${origin}/init_trajectory`,
    '',
    `Any model name will do. Rollouts are kept in ${run} when they end; Ctrl-C ends them all.`,
    '',
  ];
}
