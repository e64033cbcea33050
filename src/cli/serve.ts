/** `trainyard serve`: the policy at a URL; says where, and shows each turn as it is captured. Returns the exit code. */
import { once } from 'node:events';
import { styleText } from 'node:util';
import type { RunEvent } from '../core/events.ts';
import { turnSummary } from '../core/turn-summary.ts';
import type { Turn } from '../core/types.ts';
import { type Served, type ServeSettings, serve } from '../run/serve.ts';
import { EVAL_DEFAULTS, freeRun, TRAIN_DEFAULTS } from '../run/settings.ts';
import { guarded } from './guard.ts';
import { describe } from './lines.ts';
import { asCalled } from './phrases.ts';
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
  return await guarded(emit, { steps: false }, async ({ stop }) => {
    {
      await using served = await serve(settings, onTurn);
      const { origin, baseURL, apiKey } = served;
      say(welcome(settings, served), { type: 'serving', origin, baseURL, apiKey, model: settings.model, run: settings.run });
      if (!stop.aborted) await once(stop, 'abort');
    }
    const way = asCalled(`trainyard show ${settings.run}`);
    say(['', `${turns === 1 ? '1 turn' : `${turns} turns`} kept in ${settings.run}. Look at them:`, `  ${way}`], {
      type: 'served',
      turns,
      run: settings.run,
    });
    return 0;
  });
}

function welcome({ model, temperature }: ServeSettings, { baseURL, apiKey }: Served): readonly string[] {
  return [
    `Serving ${styleText('bold', model)} at temperature ${temperature}. Point an agent at it; everything it samples is captured.`,
    '',
    `  OPENAI_BASE_URL=${baseURL}`,
    `  OPENAI_API_KEY=${apiKey}`,
    `  ANTHROPIC_BASE_URL=${baseURL.replace(/\/v1$/, '')}`,
    `  ANTHROPIC_API_KEY=${apiKey}`,
    '',
    'Any model name will do. Ctrl-C ends it.',
    '',
  ];
}
