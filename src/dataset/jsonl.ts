/**
 * JSONL: one JSON object a line, UTF-8. Read piece by piece: at most one line is held, and a line that is too long ends the reading before
 * it is read whole. Blank lines are passed over. A message never repeats the text of a line: it may hold an answer. Also the JSON that is in
 * the cells of tables.
 */
import { messageOf } from '../core/errors.ts';
import { isObject, MAX_NESTING, sizeOfJson } from '../core/json.ts';
import { invalid, kindOf, MAX_LINE_BYTES, type RawRow } from './rows.ts';

const NEWLINE = 0x0a;

export async function* readJsonl(chunks: AsyncIterable<Uint8Array>, path: string): AsyncGenerator<RawRow> {
  const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  let number = 0;
  let isFirst = true;
  for await (const { bytes, isEnded } of linesOf(chunks, path)) {
    number++;
    const place = `line ${number}`;
    let text: string;
    try {
      text = decoder.decode(bytes);
    } catch {
      yield { kind: 'bad', place, problem: ' is not UTF-8' };
      continue;
    }
    if (number === 1) text = text.replace(/^\uFEFF/, '');
    if (text.trim() === '') continue;
    if (isFirst) refuseOneValue(text.trim(), path);
    isFirst = false;
    yield rowOf(text, place, isEnded);
  }
}

/** JSON over many lines, or all rows in one list: said of the file, not of each line. `text`: of the first line. */
function refuseOneValue(text: string, path: string): void {
  const name = /^[\w./-]+$/.test(path) ? path : '<file>';
  if (text.startsWith('[')) {
    throw invalid(`${path} is a JSON list, expected one JSON object a line`, {
      hint: `write it again with one object a line: jq -c '.[]' ${name} > tasks.jsonl`,
    });
  }
  if (text === '{') {
    throw invalid(`${path}: the first JSON object goes on over more lines, expected one JSON object a line`, {
      hint: `write it again with one object a line: jq -c . ${name} > tasks.jsonl`,
    });
  }
}

interface Line {
  readonly bytes: Uint8Array;
  /** Whether a line end follows; the last line may have none. */
  readonly isEnded: boolean;
}

async function* linesOf(chunks: AsyncIterable<Uint8Array>, path: string): AsyncGenerator<Line> {
  let [pending, held, number]: [Uint8Array[], number, number] = [[], 0, 1];
  const hold = (piece: Uint8Array): void => {
    held += piece.length;
    if (held > MAX_LINE_BYTES) {
      throw invalid(`${path} line ${number} is longer than ${MAX_LINE_BYTES / 2 ** 20} MiB`, {
        hint: 'one JSON object a line; keep large data in files of their own and name them in metadata',
      });
    }
    pending.push(piece);
  };
  for await (const chunk of chunks) {
    let start = 0;
    for (let end = chunk.indexOf(NEWLINE); end !== -1; end = chunk.indexOf(NEWLINE, start)) {
      hold(chunk.subarray(start, end));
      yield { bytes: joined(pending), isEnded: true };
      [pending, held, start] = [[], 0, end + 1];
      number++;
    }
    if (start < chunk.length) hold(chunk.subarray(start));
  }
  if (held > 0) yield { bytes: joined(pending), isEnded: false };
}

function joined(pieces: readonly Uint8Array[]): Uint8Array {
  return pieces.length === 1 && pieces[0] !== undefined ? pieces[0] : Buffer.concat(pieces);
}

function rowOf(text: string, place: string, isEnded: boolean): RawRow {
  const parsed = parseJson(text);
  if ('problem' in parsed) {
    const isTorn = !isEnded && !/[}\]]\s*$/.test(text);
    return { kind: 'bad', place, problem: `${parsed.problem}${isTorn ? '; it has no line end: was the file cut off?' : ''}` };
  }
  const { value } = parsed;
  if (!isObject(value)) {
    return { kind: 'bad', place, problem: `: expected a JSON object, found ${kindOf(value)}` };
  }
  return { kind: 'row', place, row: value };
}

/** The value, or what is wrong, to go on from the name of the place. */
export function parseJson(text: string): { readonly value: unknown } | { readonly problem: string } {
  const { nesting, keys } = sizeOfJson(text);
  if (nesting > MAX_NESTING) return { problem: `: nested deeper than ${MAX_NESTING} levels` };
  try {
    const value: unknown = JSON.parse(text);
    // Of two values for one key the last would win, and the other be lost without a word.
    return keysIn(value) === keys ? { value } : { problem: ': an object has one key twice' };
  } catch (thrown) {
    const literal = /[:[,]\s*-?(NaN|Infinity)\b/.exec(text)?.[1];
    return { problem: ` is not valid JSON${literal === undefined ? positionIn(thrown) : `, which has no ${literal}`}` };
  }
}

function keysIn(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0;
  const items: readonly unknown[] = Object.values(value);
  return items.reduce<number>((sum, item) => sum + keysIn(item), Array.isArray(value) ? 0 : items.length);
}

/** Where the mistake is, without the text around it: that may be an answer. */
function positionIn(thrown: unknown): string {
  const position = /position (\d+)/.exec(messageOf(thrown))?.[1];
  return position === undefined ? '' : ` (at character ${Number(position) + 1})`;
}

/**
 * Tables have texts where JSONL has JSON: the text of a `metadata` cell is JSON, and that of a `prompt` cell may be a list of messages.
 * Every other cell is what it is.
 */
export function fromCells(cells: Readonly<Record<string, unknown>>, place: string): RawRow {
  const { metadata, prompt } = cells;
  const row = typeof prompt === 'string' ? { ...cells, prompt: messagesIn(prompt) ?? prompt } : cells;
  if (typeof metadata !== 'string') return { kind: 'row', place, row };
  const parsed = parseJson(metadata);
  if ('problem' in parsed) return { kind: 'bad', place, problem: `: metadata${parsed.problem}` };
  return { kind: 'row', place, row: { ...row, metadata: parsed.value } };
}

/** A text that merely looks like JSON is a prompt as it stands. */
function messagesIn(text: string): unknown {
  if (!/^\s*\[\s*\{/.test(text)) return undefined;
  const parsed = parseJson(text);
  const isMessages =
    'value' in parsed &&
    Array.isArray(parsed.value) &&
    parsed.value.every((message) => isObject(message) && 'role' in message && 'content' in message);
  return isMessages ? parsed.value : undefined;
}
