/** The page of `trainyard view` in a real browser, on real runs: served, live, and as a file without any network. */
import { once } from 'node:events';
import { appendFile, cp, readFile } from 'node:fs/promises';
import { type AddressInfo, connect, createServer as createTcpServer, type Socket } from 'node:net';
import { join } from 'node:path';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Message, Trajectory } from '../../src/core/types.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { start, trainyard, useScratch } from '../cli/command.ts';
import { localServer } from '../fixtures/local-server.ts';
import { buildPage, launch, needsBrowser, pageAt, type Viewed, viewOf } from './browser.ts';

/** Only ends what hangs. */
const SOON = { timeout: 240_000 };
const SHOP = 'examples/shop/agent.ts';
const HOSTILE =
  '<img src=x onerror="document.title=\'owned\'"></script><script>document.title="owned"</script> [x](javascript:alert(1))';

/** The rollout with other words in its messages. */
const saying = (trajectory: Trajectory, content: string): Trajectory => {
  const message = <M extends Message>(given: M): M => ({ ...given, content });
  const turns = trajectory.turns.map((turn) => ({
    ...turn,
    request: { ...turn.request, messages: turn.request.messages.map(message) },
    response: message(turn.response),
  }));
  return { ...trajectory, turns, logs: [{ at: trajectory.startedAt, text: content }], output: content, metadata: { content } };
};

/** A port that leads to another one, and can be cut. */
async function cable(to: number) {
  const open = new Set<Socket>();
  let isCut = false;
  const server = createTcpServer((socket) => {
    const other = connect(to, '127.0.0.1');
    for (const end of [socket, other]) end.on('error', () => undefined).on('close', () => open.delete(end));
    open.add(socket).add(other);
    if (isCut) socket.destroy();
    else socket.pipe(other).pipe(socket);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const cut = (now: boolean): void => {
    isCut = now;
    if (now) for (const end of open) end.destroy();
  };
  return { port: (server.address() as AddressInfo).port, cut, close: () => server.close() };
}

describe('the page of trainyard view', needsBrowser, () => {
  const home = useScratch();
  let browser: Browser;
  let run: string;
  let shown: Viewed;

  beforeAll(async () => {
    buildPage();
    browser = await launch();
    run = join(home.dir, 'run');
    expect((await trainyard('train', SHOP, '--run', run, '--steps', '3')).code).toBe(0);
    shown = await viewOf(browser, run);
  });
  afterAll(async () => {
    await shown?.[Symbol.asyncDispose]();
    await browser?.close();
  });

  it('shows a run that trains as it goes on', async () => {
    const live = join(home.dir, 'live');
    const training = start(['train', SHOP, '--run', live, '--steps', '12', '--json']);
    await training.prints('"step":1,');
    await using view = await viewOf(browser, live);
    const { page, complaints } = view;
    await page.getByText('● running').waitFor();
    await page.getByText('● live').waitFor();
    const steps = page.locator('.runs tbody td').nth(4);
    const first = Number(await steps.textContent());
    expect(first).toBeGreaterThan(0);
    await page.getByText('✓ done').waitFor();
    await expect.poll(async () => Number(await steps.textContent()), SOON).toBe(12);
    expect(first).toBeLessThan(12);
    await expect.poll(() => page.locator('.chart', { hasText: 'Held-out success' }).textContent(), SOON).toMatch(/\d %/);
    expect((await training.ended).code).toBe(0);
    expect(complaints).toEqual([]);
  });

  it('keeps its key in the tab: a reload has it, no other tab and no other server of this machine gets it, and a link works once', async () => {
    await using view = await viewOf(browser, run);
    const { page } = view;
    await page.getByText('● connected').waitFor();
    expect(page.url()).toMatch(/^http:\/\/127\.0\.0\.1:\d+\/#\/$/);
    await page.reload();
    await page.locator('.runs tbody tr').first().waitFor();
    // A server of another user on this machine, which the browser visits.
    const seen: string[] = [];
    await using other = await localServer(({ url, headers }, response) => {
      // Its icon is asked for by its own page.
      if (url === '/') seen.push(JSON.stringify(headers));
      response.writeHead(200, { 'content-type': 'text/html' }).end('<p>hello');
    });
    const context = page.context();
    const visit = await context.newPage();
    await visit.goto(`${other.origin}/`);
    expect(seen.length).toBeGreaterThan(0);
    expect(seen.join()).not.toMatch(/cookie|bearer|token|referer/i);
    expect(await context.cookies()).toEqual([]);
    // A tab without the key, at a bookmark; then the link in the same tab, then once more.
    const tab = await context.newPage();
    const bookmark = `${new URL(page.url()).origin}/#/run/0`;
    await tab.goto(bookmark);
    await tab.getByText('This page needs the link that trainyard view printed.').waitFor();
    await tab.getByText('Open the latest link that trainyard view printed in its terminal').waitFor();
    const link = await view.next();
    await tab.goto(link);
    await tab.locator('.runs tbody tr').first().waitFor();
    expect(tab.url()).not.toContain('token');
    await tab.goto(link);
    await tab.locator('.runs tbody tr').first().waitFor();
    const late = await context.newPage();
    await late.goto(link);
    await late.getByText('This link was used before, or is not right.').waitFor();
    expect(await context.cookies()).toEqual([]);
  });

  it('goes on by itself when the connection was lost', async () => {
    const live = join(home.dir, 'broken');
    await cp(run, live, { recursive: true });
    await using view = await viewOf(browser, live);
    const link = new URL(await view.next());
    const between = await cable(Number(link.port));
    link.port = `${between.port}`;
    await using cabled = await pageAt(browser, link.href);
    const { page } = cabled;
    await page.getByText('● connected').waitFor();
    between.cut(true);
    await page.getByText('△ connection lost, retrying').waitFor();
    const missed = JSON.stringify({ type: 'warning', code: 'LATE', message: 'said while nobody heard' });
    await appendFile(join(live, 'events.jsonl'), `${missed}\n`);
    between.cut(false);
    await page.getByText('● connected').waitFor();
    await page.getByText('said while nobody heard').waitFor();
    between.cut(true);
    between.close();
  });

  it('narrows the list by a filter, and says what is wrong with one', async () => {
    const { page, goto } = shown;
    await goto('#/run/0');
    const counts = page.locator('p[role=status]');
    await page.locator('.rows .task').first().waitFor();
    const all = Number(/^[\d,]+/.exec(String(await counts.textContent()))?.[0].replace(',', ''));
    await page.getByLabel('Filter').fill('success && purpose=train');
    await expect.poll(() => counts.textContent(), SOON).toMatch(/ of [\d,]+/);
    expect(Number(/^[\d,]+/.exec(String(await counts.textContent()))?.[0].replace(',', ''))).toBeLessThan(all);
    expect(new Set(await page.locator('.rows .reward .value').allTextContents())).toEqual(new Set(['1.00']));
    expect(page.url()).toContain('filter=success');
    await page.getByLabel('Filter').fill('rewrd<1');
    await page.getByText('did you mean reward?').waitFor();
    await page.getByLabel('Filter').fill('task=nobody');
    await page.getByText('No rollout matches this filter.').waitFor();
  });

  it('colours tokens by what they measure', async () => {
    const { page, goto } = shown;
    await goto('#/run/0?filter=step%3D1&sort=-tokens');
    const href = await page.locator('.rows .task a').first().getAttribute('href');
    await goto(`${href}?tab=tokens`);
    await page.locator('.t.own').first().waitFor();
    // Each token says its own values where it is pointed at; the tint must follow them.
    const tints = async (): Promise<[value: number, strength: number][]> => {
      const found: [number, number][] = [];
      for (const token of (await page.locator('.t.own').all()).slice(0, 8)) {
        await token.hover();
        const said = String(await page.locator('.inspector').textContent()).replaceAll('−', '-');
        const strength = Number.parseFloat((await token.getAttribute('style'))?.split('--strength:')[1] ?? '0');
        found.push([Number(/log-probability (\S+)/.exec(said)?.[1]), strength]);
      }
      return found;
    };
    const byValue = (await tints()).toSorted(([a], [b]) => b - a);
    expect(byValue.map(([, strength]) => strength)).toEqual(byValue.map(([, strength]) => strength).toSorted((a, b) => a - b));
    expect(new Set(byValue.map(([, strength]) => strength)).size).toBeGreaterThan(1);
    await page.getByLabel('Mask').check();
    await expect.poll(async () => new Set((await tints()).map(([, strength]) => strength)).size, SOON).toBe(1);
    expect(await page.locator('.context .t[style]').count()).toBe(0);
    await page.getByLabel('Engine–trainer difference').check();
    await page.getByText(/Log-probability at the trainer|No log-probabilities of the trainer/).waitFor();
  });

  it('shows a group side by side, the highest reward first, with where its rollouts diverge', async () => {
    const { page, goto } = shown;
    await goto('#/run/0?filter=step%3D1%20%26%26%20success');
    await goto(String(await page.locator('.rows .task a').first().getAttribute('href')));
    await page.getByText('compare its rollouts').click();
    await page.locator('.column').first().waitFor();
    const rewards = (await page.locator('.column .reward .value').allTextContents()).map(Number);
    expect(rewards.length).toBeGreaterThan(1);
    expect(rewards).toEqual(rewards.toSorted((a, b) => b - a));
    expect(rewards[0]).toBeGreaterThan(rewards.at(-1)!);
    await page.getByText('diverges here').first().waitFor();
  });

  it('excludes what is selected, with the reason, and takes it back', async () => {
    const { page, goto } = shown;
    await goto('#/run/0?sort=seq');
    const box = page.getByRole('checkbox').first();
    const id = String(await box.getAttribute('aria-label')).replace('Select ', '');
    await box.check();
    await page.getByRole('button', { name: 'Exclude…' }).click();
    await page.getByLabel('Reason').fill('a leak <b>here</b>');
    await page.getByRole('button', { name: 'Exclude', exact: true }).click();
    await page.locator('.badge', { hasText: 'excluded' }).waitFor();
    expect((await trainyard('curate', run)).stdout).toContain(id);
    await goto(`#/run/0/rollout/${encodeURIComponent(id)}`);
    await page.getByText('Excluded from training: a leak <b>here</b>').waitFor();
    await page.getByRole('button', { name: 'Take rollout back…' }).click();
    await page.getByRole('button', { name: 'Take back', exact: true }).click();
    await page.getByRole('button', { name: 'Exclude rollout…' }).waitFor();
    expect((await trainyard('curate', run)).stdout).not.toContain(id);
  });

  it('gives what a filter matches as a dataset', async () => {
    const { page, goto } = shown;
    await goto('#/run/0?filter=success');
    await page.getByRole('button', { name: 'Make a dataset of this filter…' }).click();
    await page.getByText('--filter success').waitFor();
    const download = page.waitForEvent('download');
    await page.getByRole('button', { name: 'Download' }).click();
    const lines = (await readFile(await (await download).path(), 'utf8')).trim().split('\n');
    expect(Object.keys(JSON.parse(lines[0] ?? ''))).toContain('messages');
    await page.getByRole('dialog').waitFor({ state: 'detached' });
  });

  it('is used by keys alone', async () => {
    const { page, goto } = shown;
    const press = async (...keys: readonly string[]): Promise<void> => {
      for (const key of keys) await page.keyboard.press(key);
    };
    await goto('#/');
    await page.getByText('● connected').waitFor();
    await page.locator('main a').first().waitFor();
    await press('j', 'Enter');
    await page.locator('.rows .task').nth(3).waitFor();
    await press('j', 'j', 'k', 'j');
    // The page draws after the key.
    const href = await page.locator('#row-2.current a').getAttribute('href');
    await press('Enter');
    await page.getByRole('link', { name: 'Conversation' }).waitFor();
    expect(page.url()).toContain(href);
    await press('Escape');
    expect(await page.locator('#row-2.current a').getAttribute('href')).toBe(href);
    await press('/');
    await page.locator('#filter:focus').waitFor();
    await press('Escape', '?');
    await page.getByRole('dialog', { name: 'Keys' }).waitFor();
    await press('Escape', 'Escape');
    await page.getByRole('heading', { name: 'Runs' }).waitFor();
  });

  it('gives every control a name, and only one place for each id', async () => {
    const { page, goto } = shown;
    const nameless = `[...document.querySelectorAll('a,button,input,select,[role=img],[role=grid],[tabindex]')].filter((e) =>
      !(e.innerText || e.getAttribute('aria-label') || e.title || e.closest('label') || e.labels?.length)).map((e) => e.outerHTML)`;
    const twice = `[...document.querySelectorAll('[id]')].map(({ id }) => id).filter((id, i, all) => all.indexOf(id) !== i)`;
    await goto('#/run/0?filter=step%3D1');
    const href = await page.locator('.rows .task a').first().getAttribute('href');
    for (const hash of ['#/', '#/run/0', `${href}`, `${href}?tab=tokens`, `${href}?tab=log`]) {
      await goto(hash);
      await page.locator('main > *').first().waitFor();
      await page.locator('.loading').waitFor({ state: 'detached' });
      expect(await page.evaluate(nameless), hash).toEqual([]);
      expect(await page.evaluate(twice), hash).toEqual([]);
      expect(await page.locator('main').count()).toBe(1);
    }
  });

  it('shows what a model wrote as text, served and as a file that needs no network', async () => {
    const hostile = join(home.dir, 'hostile.sqlite');
    {
      await using from = await openSqliteStore(join(run, 'store.sqlite'));
      await using to = await openSqliteStore(hostile);
      for (const trajectory of (await from.query({ purpose: 'train' })).slice(0, 8)) await to.append(saying(trajectory, HOSTILE));
    }
    const file = join(home.dir, 'view.html');
    const exported = await trainyard('view', hostile, '--export', file);
    expect(exported.code, exported.stderr).toBe(0);
    await using served = await viewOf(browser, hostile);
    await using opened = await pageAt(browser, `file://${file}`, true);
    await opened.page.getByText(/^exported /).waitFor();
    for (const { page, complaints, goto } of [served, opened]) {
      await goto('#/run/0');
      const href = await page.locator('.rows .task a').first().getAttribute('href');
      const group = `#/run/0/group/${String(href).split('/').at(-1)?.replace(/-\d+$/, '')}`;
      for (const hash of [`${href}`, `${href}?tab=tokens`, `${href}?tab=log`, group]) {
        await goto(hash);
        await page.locator('main h1').waitFor();
        await page.locator('.loading').waitFor({ state: 'detached' });
        if (!hash.includes('tokens')) await page.getByText('<img src=x onerror').first().waitFor();
        expect(await page.locator('main img, main script, a[href^="javascript"]').count()).toBe(0);
        expect(await page.title()).not.toBe('owned');
      }
      expect(complaints).toEqual([]);
    }
    await opened.goto('#/run/0');
    await opened.page.getByLabel('Filter').fill('turns>100');
    await opened.page.getByText('No rollout matches this filter.').waitFor();
    expect(await opened.page.getByRole('checkbox').count()).toBe(0);
    await opened.goto('#/run/0/rollout/elsewhere');
    await opened.page.getByText('The exported file does not hold this.').waitFor();
  });
});
