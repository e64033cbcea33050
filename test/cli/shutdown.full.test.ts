/** SIGTERM to a real server: it takes nothing new, what is in flight ends whole, and nothing of it is left. */
import { execFileSync } from 'node:child_process';
import { request } from 'node:http';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { saidIn, start, started, trainyard, useScratch } from './command.ts';

const home = useScratch();

interface Serving {
  readonly origin: string;
  readonly baseURL: string;
  readonly apiKey: string;
  readonly adminKey: string;
}

const BODY = JSON.stringify({ model: 'any', stream: true, max_tokens: 40, messages: [{ role: 'user', content: 'Count.' }] });
const headersOf = (key: string) => ({ authorization: `Bearer ${key}`, 'content-type': 'application/json' });
const opened = ({ origin, adminKey }: Serving) => fetch(`${origin}/sessions`, { method: 'POST', headers: headersOf(adminKey) });
const asked = ({ baseURL, apiKey }: Serving) =>
  fetch(`${baseURL}/chat/completions`, { method: 'POST', headers: headersOf(apiKey), body: BODY });

/** A stream that the server has begun to take: the rest of its request comes when the test says so. */
async function beginning({ baseURL, apiKey }: Serving) {
  const headers = { ...headersOf(apiKey), 'content-length': BODY.length };
  const call = request(`${baseURL}/chat/completions`, { method: 'POST', headers, agent: false });
  const whole = new Promise<string>((resolve, reject) =>
    call.on('response', (answer) => resolve(text(answer))).on('error', reject),
  );
  whole.catch(() => undefined);
  await new Promise((resolve) => call.write(BODY.slice(0, 9), resolve));
  return { whole, goOn: () => call.end(BODY.slice(9)) };
}

/** A server with 20 streams under way that was sent the signal, and has taken notice. */
async function signalled(signal: NodeJS.Signals) {
  const flags = ['--json', '--threads', '1', '--run', join(home.dir, signal)];
  const { child, ended, first: serving } = await started<Serving>(['serve', ...flags]);
  const streams = await Promise.all(Array.from({ length: 20 }, () => beginning(serving)));
  await sleep(100);
  child.kill(signal);
  while ((await fetch(`${serving.origin}/ready`)).ok);
  return { child, ended, serving, streams };
}

const childrenOf = (pid = 0): string => {
  try {
    return execFileSync('pgrep', ['-P', `${pid}`], { encoding: 'utf8' });
  } catch {
    return '';
  }
};

const SLOW = `
import { setTimeout as sleep } from 'node:timers/promises';
import { defineGrader, defineWorkflow } from 'trainyard';
export default defineWorkflow(async (ctx) => {
  const { text } = await ctx.model().generate({ messages: ctx.prompt, maxTokens: 4 });
  await sleep(300);
  return { output: text };
});
export const grader = defineGrader(() => 1);
`;

describe('an evaluation that is told to stop', () => {
  it.each([
    ['lets its rollouts end, starts no more, exits 0', 0, []],
    ['does not pass for good enough', 143, ['--min-success', '0.5']],
  ] as const)('%s, and goes on later', async (name, code, more) => {
    const entry = await home.write('slow.ts', SLOW);
    const rows = Array.from({ length: 30 }, (_, i) => JSON.stringify({ id: `t${i}`, prompt: 'Q?' }));
    const tasks = await home.write('slow.jsonl', `${rows.join('\n')}\n`);
    const run = join(home.dir, `eval-${code}`);
    const flags = ['--held-out', tasks, '--run', run, '--concurrency', '3', '--json', ...more];
    const { child, ended, prints } = start(['eval', entry, ...flags]);
    await prints('"eval-start"');
    await sleep(700);
    child.kill('SIGTERM');
    const stopped = await ended;
    expect([name, stopped.code]).toEqual([name, code]);
    expect(stopped.stderr).toMatch(/go on with:/i);
    const kept = saidIn(await trainyard('show', run, '--json'));
    expect(kept.length).toBeGreaterThanOrEqual(3);
    expect(kept.length).toBeLessThan(30);
    expect(kept.every(({ outcome }) => outcome === 'completed')).toBe(true);
    const resumed = await trainyard('eval', '--resume', run, '--json');
    expect(resumed.code).toBe(0);
    expect(saidIn(resumed).at(-1)).toMatchObject({ type: 'done', n: 30, success: 1 });
  });
});

describe('a server that is told to stop', () => {
  it.each(['SIGTERM', 'SIGHUP'] as const)(
    'by %s ends 20 streams whole, refuses new work with 503, and exits 0',
    async (signal) => {
      const { child, ended, serving, streams } = await signalled(signal);
      for (const refusal of await Promise.all([opened(serving), asked(serving)])) {
        expect(refusal.status).toBe(503);
        expect(refusal.headers.get('retry-after')).toMatch(/^\d+$/);
        expect(await refusal.json()).toMatchObject({ error: { code: 'not_ready', message: 'the server is stopping' } });
      }
      for (const { goOn } of streams) goOn();
      for (const { whole } of streams) expect(await whole).toMatch(/"finish_reason":"(?:stop|length)".*\n\ndata: \[DONE\]\n\n$/);
      expect((await ended).code).toBe(0);
      expect(childrenOf(child.pid)).toBe('');
    },
  );

  it('twice leaves at once with 143', async () => {
    const { child, ended, streams } = await signalled('SIGTERM');
    await sleep(150);
    child.kill('SIGTERM');
    expect((await ended).code).toBe(143);
    await expect(streams[0]!.whole).rejects.toThrow();
    expect(childrenOf(child.pid)).toBe('');
  });
});
