/**
 * Makes the pictures of docs/images/: trains the shop agent twice, serves both runs with `trainyard view`, and looks at the page with
 * Debian's Chromium. Needs `npm run build:page` first.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { chromium, type Page } from 'playwright-core';

const root = join(import.meta.dirname, '..');
const images = join(root, 'docs/images');
/** Their paths are in the pictures. */
const RUNS = ['runs/shop', 'runs/shop-faster'] as const;
const command = (...args: readonly string[]) =>
  spawn(process.execPath, ['--conditions=trainyard-source', join(root, 'src/cli/main.ts'), ...args], {
    cwd: root,
    stdio: ['ignore', 'pipe', 'inherit'],
  });

async function train(run: string, ...flags: readonly string[]): Promise<void> {
  const training = command('train', 'examples/shop/agent.ts', '--run', run, '--eval-every', '2', '--json', ...flags);
  training.stdout.resume();
  const [code] = await once(training, 'close');
  if (code !== 0) throw new Error(`training ${run} ended with ${code}`);
}

type Look = readonly [
  name: string,
  scheme: 'light' | 'dark',
  width: number,
  hash: string,
  before?: (page: Page) => Promise<unknown>,
];

/** The first rollout of the list that the filter gives. */
const open = (tab: string) => async (page: Page) => {
  const href = await page.locator('.rows .task a').first().getAttribute('href');
  await page.goto(`${page.url().split('#')[0]}${href}${tab}`);
  await page.locator('.loading').waitFor({ state: 'detached' });
};

const LOOKS: readonly Look[] = [
  ['runs', 'light', 1280, '#/'],
  ['rollouts', 'light', 1280, '#/run/0?filter=purpose%3Dtrain+%26%26+turns%3E1'],
  [
    ...(['tokens', 'dark', 1280, '#/run/0?filter=step%3D3+%26%26+turns%3D3+%26%26+!success'] as const),
    async (page) => {
      await open('?tab=tokens')(page);
      const strength = `(token) => Number.parseFloat(token.style.getPropertyValue('--strength')) || 0`;
      const all = `[...document.querySelectorAll('.t.own')].map(${strength})`;
      await page
        .locator('.t.own')
        .nth(await page.evaluate(`${all}.indexOf(Math.max(...${all}))`))
        .hover();
    },
  ],
  [
    ...(['group', 'light', 1280, '#/run/0?filter=step%3D2+%26%26+success&sort=-turns'] as const),
    async (page) => {
      await open('')(page);
      await page.getByText('compare its rollouts').click();
    },
  ],
  ['phone', 'dark', 390, '#/run/0?filter=step%3D3+%26%26+success&sort=-turns', open('')],
];

await train(RUNS[0], '--steps', '12');
await train(RUNS[1], '--steps', '12', '--seed', '3', '--learning-rate', '0.002');
const server = command('view', '--json', ...RUNS);
const [line] = (await once(server.stdout.setEncoding('utf8'), 'data')) as [string];
const { link } = JSON.parse(line.split('\n')[0] ?? '') as { readonly link: string };
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu'] });
const context = await browser.newContext();
const page = await context.newPage();
await page.goto(link);
mkdirSync(images, { recursive: true });
for (const [name, colorScheme, width, hash, before] of LOOKS) {
  await page.setViewportSize({ width, height: width < 600 ? 844 : 800 });
  await page.emulateMedia({ colorScheme });
  await page.goto(new URL(`/${hash}`, link).href);
  await page.waitForTimeout(1000);
  await before?.(page);
  await page.waitForTimeout(1000);
  await page.screenshot({ path: join(images, `${name}.png`) });
}
await browser.close();
server.kill('SIGINT');
await once(server, 'close');
for (const run of RUNS) rmSync(join(root, run), { recursive: true });
