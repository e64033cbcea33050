/**
 * The gateway under test, a process of its own: the real gateway and listener, and an engine that asks the upstream. Sessions are
 * opened and sealed over the process channel; calls come over HTTP only.
 */
import type { Session } from '../../src/core/contracts.ts';
import { Gateway, listen } from '../../src/gateway/gateway.ts';
import { loadMaterial } from './conversation.ts';
import { createPool } from './packages.ts';
import { upstreamEngine } from './upstream-engine.ts';

/** What the process is told, and what it answers. */
export type Order = { readonly kind: 'open'; readonly count: number } | { readonly kind: 'seal' } | { readonly kind: 'memory' };
export interface Door {
  readonly path: string;
  readonly authorization: string;
}

const [upstreamPort, streamPath, connections] = process.argv.slice(2) as [string, string, string];
const { renderer } = await loadMaterial();
const pool = createPool(`http://127.0.0.1:${upstreamPort}`, Number(connections));
const engine = upstreamEngine(pool, renderer.vocabSize, streamPath);
const gateway = new Gateway({ engine, renderer, modelName: 'policy' });
const { origin } = await listen(gateway);
const running = new AbortController();
let sessions: Session[] = [];
let opened = 0;

function open(): Door {
  const session = gateway.open({
    identity: { rolloutId: `r${opened++}`, groupId: 'g', taskId: 't', purpose: 'train' },
    roles: {},
    sampling: { temperature: 1, topP: 1, topK: 0, maxTokens: 256 },
    limits: { turns: 64, tokens: 100_000, deadlineMs: 600_000 },
    seed: 1,
    signal: running.signal,
  });
  sessions.push(session);
  const { baseURL, apiKey } = session.model();
  return { path: `${new URL(baseURL).pathname}/chat/completions`, authorization: `Bearer ${apiKey}` };
}

/** How many turns were recorded in all sessions. */
function seal(): number {
  const turns = sessions.reduce((sum, session) => sum + session.seal().length, 0);
  sessions = [];
  return turns;
}

process.on('message', (order: Order) => {
  if (order.kind === 'open') process.send!(Array.from({ length: order.count }, open));
  else process.send!(order.kind === 'seal' ? seal() : process.memoryUsage.rss());
});
process.on('disconnect', () => process.exit(0));
process.send!(Number(new URL(origin).port));
