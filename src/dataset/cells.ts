/**
 * Tables have texts where JSONL has JSON: the text of a `metadata` cell is JSON, and that of a `prompt` cell may be a list of messages.
 * Every other cell is what it is.
 */
import { parseJson } from './jsonl.ts';
import { isRecord, type RawRow } from './rows.ts';

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
    parsed.value.every((message) => isRecord(message) && 'role' in message && 'content' in message);
  return isMessages ? parsed.value : undefined;
}
