/**
 * Makes docs/images/terminal.png: runs the demo in a terminal (tmux), and has Debian's Chromium draw the last screen as it was. Nothing is
 * retouched but for the lines above the view, which are left out. `scripts/screenshots.ts` makes the other pictures.
 */
import { execFileSync } from 'node:child_process';
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { stripVTControlCharacters } from 'node:util';
import { chromium } from 'playwright-core';

const root = join(import.meta.dirname, '..');
/** Its path is in the picture. */
const RUN = 'runs/shop';
const SESSION = 'trainyard-picture';
const SCREEN = ['-x', '84', '-y', '40'];
const FIRST_LINE = 'Training examples/shop';
const LAST_LINE = 'Done in';
const LONGEST_S = 300;

/** SGR codes of the live view. A code that is missing here draws as plain text. */
const STYLES: Readonly<Record<string, string>> = {
  1: 'font-weight: bold',
  2: 'opacity: 0.55',
  32: 'color: #7ee787',
  33: 'color: #e3b341',
  35: 'color: #d2a8ff',
  36: 'color: #79c0ff',
};

const tmux = (...args: readonly string[]): string => execFileSync('tmux', args, { encoding: 'utf8' });

async function lastScreen(): Promise<string> {
  const command = `exec '${process.execPath}' --conditions=trainyard-source src/cli/main.ts train examples/shop/agent.ts --run ${RUN}`;
  tmux('new-session', '-d', '-s', SESSION, ...SCREEN, '-c', root, command);
  tmux('set-option', '-t', SESSION, 'remain-on-exit', 'on');
  for (let waited = 0; waited < LONGEST_S; waited += 1) {
    const screen = tmux('capture-pane', '-e', '-p', '-t', SESSION);
    if (screen.includes(LAST_LINE)) return screen;
    await sleep(1000);
  }
  throw new Error(`the demo did not end within ${LONGEST_S} s`);
}

/** Styles go on over the end of a line. */
function drawn(screen: string): string {
  const styles = new Set<string>();
  const [before = '', ...parts] = screen.split('\x1b[');
  const spans = parts.map((part) => {
    const end = part.indexOf('m');
    for (const code of part.slice(0, end).split(';')) {
      if (code === '0') styles.clear();
      else if (code === '39') for (const style of styles.values().filter((one) => one.startsWith('color'))) styles.delete(style);
      else if (STYLES[code] !== undefined) styles.add(STYLES[code]);
    }
    return `<span style="${[...styles].join('; ')}">${inCells(part.slice(end + 1))}</span>`;
  });
  return inCells(before) + spans.join('');
}

/** Dots of the curve come from a font of another width: each gets the cell that a terminal gives it. */
const inCells = (text: string): string => text.replaceAll('<', '&lt;').replaceAll(/[\u2800-\u28ff]/g, '<i>$&</i>');

const STYLE = `pre { margin: 0; padding: 16px 20px; width: fit-content; background: #0d1117; color: #e6edf3 }
  pre { font: 14px/1.25 'DejaVu Sans Mono', monospace }
  i { display: inline-block; width: 1ch; overflow: hidden; font-style: normal; line-height: 1 }`;

const lines = (await lastScreen()).split('\n');
tmux('kill-session', '-t', SESSION);
const first = lines.findIndex((line) => stripVTControlCharacters(line).startsWith(FIRST_LINE));
const last = lines.findIndex((line) => stripVTControlCharacters(line).startsWith(LAST_LINE));
const shown = drawn(lines.slice(first, last + 1).join('\n'));
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu'] });
const page = await browser.newPage({ deviceScaleFactor: 2 });
await page.setContent(`<style>${STYLE}</style><pre>$ npm run demo\n${shown}</pre>`);
await page.locator('pre').screenshot({ path: join(root, 'docs/images/terminal.png') });
await browser.close();
rmSync(join(root, RUN), { recursive: true });
