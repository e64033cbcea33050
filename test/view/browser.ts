/** A real browser for tests of the page: Debian's Chromium. Where there is none, tests with the options `needsBrowser` are skipped. */
import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Browser, chromium, type Page } from 'playwright-core';
import { ROOT, start } from '../cli/command.ts';
import { needs } from '../fixtures/needs.ts';

const CHROMIUM = '/usr/bin/chromium';
export const needsBrowser = needs(existsSync(CHROMIUM) ? undefined : 'Chromium (apt-get install chromium)');

const QUIET = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking'];

export const launch = (): Promise<Browser> =>
  chromium.launch({ executablePath: CHROMIUM, args: [...QUIET, '--disable-component-update', '--disable-sync'] });

export const buildPage = (): void =>
  void execFileSync(process.execPath, [join(ROOT, 'scripts/build-page.ts')], { cwd: ROOT, stdio: 'inherit' });

export interface Viewed extends AsyncDisposable {
  readonly page: Page;
  /** What the browser complained about: exceptions, refused scripts and styles, failed requests. */
  readonly complaints: readonly string[];
  goto(hash: string): Promise<void>;
}

export async function pageAt(browser: Browser, address: string, offline = false): Promise<Viewed> {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, offline, acceptDownloads: true });
  // Only ends what hangs.
  context.setDefaultTimeout(240_000);
  const page = await context.newPage();
  const complaints: string[] = [];
  page.on('pageerror', ({ message }) => complaints.push(message));
  page.on('console', (said) => said.type() === 'error' && complaints.push(said.text()));
  page.on('dialog', (dialog) => void complaints.push(`dialog: ${dialog.message()}`));
  await page.goto(address);
  const base = page.url().split('#')[0] ?? '';
  return {
    page,
    complaints,
    goto: async (hash) => void (await page.goto(base + hash)),
    [Symbol.asyncDispose]: () => context.close(),
  };
}

/** `trainyard view` of these runs, and a page that shows them. `next`: the link for another tab. */
export async function viewOf(browser: Browser, ...runs: readonly string[]): Promise<Viewed & { next(): Promise<string> }> {
  const server = start(['view', '--json', ...runs]);
  const links = (): readonly string[] => [...server.stdout().matchAll(/"link":"([^"]+)"/g)].map(([, link]) => link!);
  const linkAfter = async (n: number): Promise<string> => {
    while (links().length <= n) await sleep(10);
    return links()[n]!;
  };
  await server.prints('"link"');
  const viewed = await pageAt(browser, await linkAfter(0));
  const close = async (): Promise<void> => {
    await viewed[Symbol.asyncDispose]();
    server.child.kill('SIGINT');
    await server.ended;
  };
  return { ...viewed, next: () => linkAfter(1), [Symbol.asyncDispose]: close };
}
