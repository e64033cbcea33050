/** How a command reports: a live view on a terminal, plain lines in a pipe, one JSON object a line for programs. */
import type { Emit } from '../core/events.ts';
import { describe, progressLines } from './lines.ts';
import { attachScreen, type Report } from './screen/attach.ts';
import type { Title } from './screen/state.ts';
import { wantsScreen } from './screen/terminal.ts';

export function openReport(json: boolean, title: Title): Report {
  if (!json && wantsScreen(process.stdout.isTTY === true, process.env)) return attachScreen(title);
  return { emit: json ? jsonLines(process.stdout) : textLines(process.stdout), [Symbol.dispose]: () => {} };
}

/** Every event but `progress`, which is for looking at. */
export function jsonLines(out: NodeJS.WritableStream): Emit {
  return (event) => {
    if (event.type !== 'progress') out.write(`${JSON.stringify(event)}\n`);
  };
}

/** Milliseconds of silence after which progress is a line. */
const SILENCE = 10_000;

/** Progress only where nothing else was said for a while: a log must not be silent for minutes, nor full of it. */
export function textLines(out: NodeJS.WritableStream, now: () => number = () => performance.now()): Emit {
  let entry = '';
  let last = now();
  return (event) => {
    if (event.type === 'progress' && now() - last < SILENCE) return;
    if (event.type === 'run-start') entry = event.entry;
    const lines = event.type === 'progress' ? progressLines(event) : describe(event, entry);
    for (const line of lines) out.write(`${line}\n`);
    if (lines.length > 0) last = now();
  };
}
