/** `trainyard tinker`: the Tinker API on a model folder; says where, and shows what it refuses. Returns the exit code. */
import { once } from 'node:events';
import { styleText } from 'node:util';
import type { RunEvent } from '../core/events.ts';
import { shortPath } from '../run/command-line.ts';
import { EVAL_DEFAULTS } from '../run/settings.ts';
import { guarded } from './guard.ts';
import { describe } from './lines.ts';
import { printable } from './screen/width.ts';

interface Refused {
  readonly status: number;
  readonly code: string;
  readonly message: string;
}

/** The same refusal again within this time is not shown again. */
const QUIET_MS = 10_000;
const MOST_KINDS = 1000;

export const TINKER_DEFAULTS = {
  model: EVAL_DEFAULTS.model as string,
  host: '127.0.0.1',
  port: 0,
  apiKey: undefined as string | undefined,
  state: 'runs/tinker',
  threads: EVAL_DEFAULTS.threads as number,
};
type TinkerFlags = typeof TINKER_DEFAULTS;

export async function tinkerCommand(flags: Partial<TinkerFlags> & { readonly json: boolean }): Promise<number> {
  const { json, ...given } = flags;
  const apiKey = given.apiKey ?? (process.env['TINKER_API_KEY'] || undefined);
  const settings: TinkerFlags = { ...TINKER_DEFAULTS, ...given, apiKey };
  const say = (lines: readonly string[], value: object): void => console.log(json ? JSON.stringify(value) : lines.join('\n'));
  const emit = (event: RunEvent): void => {
    if (event.type === 'warning' && event.code !== 'INTERRUPTED') say(describe(event, ''), event);
  };
  const shown = new Map<string, number>();
  const onFailure = ({ status, code, message }: Refused, path: string): void => {
    // A client that was cut off asks for everything it had: one line for each kind of it says enough.
    const kind = `${status} ${code} ${path}`;
    const isNews = performance.now() - (shown.get(kind) ?? Number.NEGATIVE_INFINITY) > QUIET_MS;
    shown.set(kind, performance.now());
    if (shown.size > MOST_KINDS) shown.clear();
    if (!isNews && !json) return;
    const line = `${styleText('yellow', `refused ${status} ${code}`)} ${printable(path.slice(0, 100))}: ${printable(message)}`;
    say([line], { type: 'refused', status, code, message, path });
  };
  return await guarded(emit, { steps: false, serves: true }, async ({ stop }) => {
    const { serveTinker } = await import('../tinker/server/serve-tinker.ts');
    await using served = await serveTinker(settings, onFailure);
    const { origin, apiKey: key, baseModel } = served;
    const { model, state } = settings;
    say(welcome(settings, served), { type: 'serving', origin, baseURL: origin, apiKey: key, baseModel, model, state });
    if (!stop.aborted) await once(stop, 'abort');
    say(['', `Stopped. Saved weights are in ${state}; a server started with the same --state has them, and the same key.`], {
      type: 'served',
      state,
    });
    return 0;
  });
}

function welcome(
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
