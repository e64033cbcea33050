/** `trainyard model get`: downloads a model of the Hugging Face hub, shows how far it is, and says what to type next. Returns the exit code. */
import { printableLine } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { RunEvent } from '../core/events.ts';
import { downloadModel, sizeText } from '../engines/model-download.ts';
import { HUB_NAME } from '../engines/model-path.ts';
import { shellWord } from '../settings/settings.ts';
import { guarded } from './guarded.ts';
import { describe, saying } from './output/print.ts';
import { unfiltered } from './output/terminal.ts';
import { asCalled, duration, ERASE_LINE_END } from './output/text.ts';

/** Milliseconds between lines: on a terminal each replaces the last. */
const OFTEN = 200;
const SELDOM = 10_000;

/** `_what`: `get`. */
export async function modelCommand(
  _what: string,
  named: string,
  given: string | undefined,
  { json }: { readonly json: boolean },
): Promise<number> {
  const [, id, file = given] = HUB_NAME.exec(named) ?? [];
  if (id === undefined) {
    const message = `expected the name of a model at the Hugging Face hub, Owner/Name, found ${JSON.stringify(named)}`;
    throw new TrainyardError('USAGE', message, 'such as trainyard model get HuggingFaceTB/SmolLM2-135M-Instruct');
  }
  const onTerminal = !json && process.stderr.isTTY === true;
  const began = performance.now();
  let last = Number.NEGATIVE_INFINITY;
  let from = -1;
  const onProgress = (file: string, done: number, total: number): void => {
    const now = performance.now();
    if (from < 0) from = done;
    if (now - last < (onTerminal ? OFTEN : SELDOM) && done < total) return;
    last = now;
    const left = done > from ? ` · ${duration(((now - began) / 1000) * ((total - done) / (done - from)))} left` : '';
    const line = `${printableLine(file)} · ${sizeText(done)} of ${sizeText(total)}${left}`;
    if (json) console.log(JSON.stringify({ type: 'progress', file, done, total }));
    else if (onTerminal) unfiltered(process.stderr)(`\r${line}${ERASE_LINE_END}${done === total ? '\n' : ''}`);
    else process.stderr.write(`${line}\n`);
  };
  const emit = (event: RunEvent): void => void process.stderr.write(`${describe(event).join('\n')}\n`);
  const model = await guarded(emit, { steps: false }, async ({ stop }) => {
    try {
      return await downloadModel(id, file, { signal: stop, onProgress });
    } catch (thrown) {
      if (!stop.aborted) throw thrown;
      throw new TrainyardError('CANCELLED', 'interrupted', 'type the command again: it goes on where it stopped');
    }
  });
  const next = ['eval', 'train'].map((verb) => `  ${asCalled(`trainyard ${verb} <entry> --model ${shellWord(model.name)}`)}`);
  const lines = [
    `${id} (${sizeText(model.bytes)}, every file verified) is in ${model.path}`,
    'Measure it with your agent, or train it:',
    ...next,
  ];
  saying(json)(lines, { type: 'downloaded', ...model });
  return 0;
}
