/** How a command reports: a live view on a terminal, plain lines in a pipe, one JSON object a line for programs. */
import type { Emit } from '../core/events.ts';
import { describe } from './lines.ts';
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

export function textLines(out: NodeJS.WritableStream): Emit {
  let entry = '';
  return (event) => {
    if (event.type === 'run-start') entry = event.entry;
    for (const line of describe(event, entry)) out.write(`${line}\n`);
  };
}
