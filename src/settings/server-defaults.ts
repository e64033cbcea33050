/** Defaults of the servers: `serve`, `tinker`, `skyrl` and `view`. Those of settings of runs are in table.ts. */
import { EVAL_DEFAULTS } from './setting-rows.ts';
import { TINKER_CONCURRENCY } from './settings.ts';

const HOST = '127.0.0.1';
const { engine, model, threads, seed } = EVAL_DEFAULTS;
export const SERVE_DEFAULTS = { engine, threads, seed, host: HOST, port: 0, group: 8 } as const;
export const TINKER_DEFAULTS = { model, threads, host: HOST, port: 0, state: 'runs/tinker' } as const;

export const SKYRL_DEFAULTS = {
  port: 0,
  cpu: false,
  sequences: TINKER_CONCURRENCY,
  rows: 32,
  loraRank: 32,
  context: 1024,
  callTokens: EVAL_DEFAULTS.callTokens,
} as const;
