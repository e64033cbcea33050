/**
 * Writes runs as one HTML file: the page with its script and style inside, and the answers it would ask the server for, by path and query. The
 * answers lie in it as JSON that no browser executes, whatever a model wrote; a policy in the file allows nothing but the page's own script
 * and style, so the file loads and sends nothing.
 */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { TrainyardError, tried } from '../core/errors.ts';
import { measuresOf } from '../core/listing.ts';
import { compare, measuredIn } from '../evaluation/compare.ts';
import type { RolloutRow } from '../run/inspect.ts';
import { writeWhole } from '../store/files.ts';
import type { ExportedView, RolloutPage } from './api.ts';
import { html, pageFile } from './page-files.ts';
import type { ShownRun } from './shown-run.ts';

interface ViewToExport {
  readonly to: string;
  /** Only what passes is in the file. */
  readonly filter: string;
  /** Of each run, the latest this many are in the file with their conversations and tokens; of the others, only their lines. */
  readonly limit: number;
  /** Only this one. */
  readonly rollout?: string | undefined;
}

const MOST_LINES = 5000;
const MOST_COMPARED = 6;

/** Returns how many rollouts are in the file whole. */
export async function exportView(runs: readonly ShownRun[], request: ViewToExport): Promise<number> {
  if (!request.to.endsWith('.html')) {
    throw new TrainyardError('USAGE', `--export: expected a name that ends in .html, found ${JSON.stringify(request.to)}`);
  }
  const answers: Record<string, unknown> = { '/api/runs': await Promise.all(runs.map((run) => run.info())) };
  let whole = 0;
  for (const run of runs) whole += await addRun(run, request, answers);
  if (request.rollout !== undefined && whole === 0) {
    throw new TrainyardError('FILE_NOT_FOUND', `no run holds the rollout ${JSON.stringify(request.rollout)}`);
  }
  await addComparisons(runs.slice(0, MOST_COMPARED), answers);
  const read = (name: 'page.js' | 'page.css'): string => readFileSync(pageFile(name), 'utf8');
  await writeWhole(request.to, exportedFile({ takenAt: Date.now(), answers }, read('page.js'), read('page.css')));
  return whole;
}

/** Of a run with a problem, its info says which. */
async function addRun(run: ShownRun, request: ViewToExport, answers: Record<string, unknown>): Promise<number> {
  const { filter, limit, rollout } = request;
  const at = `/api/runs/${run.id}`;
  answers[`${at}/events`] = run.events;
  const all = await run.matching(filter).catch((thrown: unknown) => {
    if (thrown instanceof TrainyardError && thrown.code === 'USAGE') throw thrown;
    return [];
  });
  const rows = rollout === undefined ? all : all.filter(({ rolloutId }) => rolloutId === rollout);
  answers[`${at}/rollouts`] = pageOf(rows, run.rollouts);
  const whole = rows.slice(-limit);
  for (const { rolloutId, groupId } of whole) {
    const path = `${at}/rollouts/${encodeURIComponent(rolloutId)}`;
    answers[path] = await run.rollout(rolloutId);
    answers[`${path}/tokens`] = await run.tokens(rolloutId);
    if (rollout === undefined) answers[`${at}/groups/${encodeURIComponent(groupId)}`] ??= await run.group(groupId);
  }
  return whole.length;
}

function pageOf(rows: readonly RolloutRow[], total: number): RolloutPage {
  const latest = rows.slice(-MOST_LINES).toReversed();
  return { total, read: total, matching: rows.length, ...measuresOf(rows), from: 0, rows: latest };
}

async function addComparisons(runs: readonly ShownRun[], answers: Record<string, unknown>): Promise<void> {
  const measured = await Promise.all(
    runs.map(async (run) => [run, await measuredIn(run.path, run.store).catch(() => undefined)] as const),
  );
  for (const [one, a] of measured) {
    for (const [other, b] of measured) {
      if (one === other || a === undefined || b === undefined) continue;
      const comparison = tried(() => compare(a, b));
      if (comparison !== undefined) answers[`/api/diff?a=${one.id}&b=${other.id}`] = comparison;
    }
  }
}

/** `js` and `css`: of the page. */
export function exportedFile(view: ExportedView, js: string, css: string): string {
  // Nothing in them may end its element early, or reach the browser in another form than the one that is hashed.
  const whole = (text: string): string => text.replaceAll('\r', '').replaceAll(/<\/(?=script|style)/gi, '<\\/');
  const script = whole(js);
  const style = whole(css);
  const inert: Readonly<Record<string, string>> = { '<': '\\u003c', '\u2028': '\\u2028', '\u2029': '\\u2029' };
  const data = JSON.stringify(view).replaceAll(/[<\u2028\u2029]/g, (character) => inert[character]!);
  const hash = (text: string): string => `'sha256-${createHash('sha256').update(text).digest('base64')}'`;
  const policy = `default-src 'none'; script-src ${hash(script)}; style-src ${hash(style)}; img-src data:; base-uri 'none'; form-action 'none'`;
  const head = `<meta http-equiv="Content-Security-Policy" content="${policy}">\n<style>${style}</style>`;
  const body = [
    '<div id="app"></div>',
    `<script type="application/json" id="trainyard-export">${data}</script>`,
    `<script type="module">${script}</script>`,
  ];
  return html('Trainyard', head, body.join('\n'));
}
