/**
 * From a body as it came to JSON: its declared type, its size, its nesting, how much it holds. What the JSON must hold is for whoever reads it.
 */
import { messageOf, TrainyardError } from '../core/errors.ts';
import { sizeOfJson } from '../core/json.ts';
import type { UnreadCall } from './call.ts';
import { Refusal } from './http-errors.ts';
import { GATEWAY_LIMITS, tooLarge } from './limits.ts';

const JSON_TYPE = /^application\/(?:[\w.+-]+\+)?json(?:\s*;\s*charset\s*=\s*"?utf-?8"?)?\s*;?$/i;

/** The text of the body. Throws before it is kept where its headers say that it is of no use. */
export async function readBody({ body, header }: UnreadCall): Promise<string> {
  const type = header('content-type')?.trim();
  if (type && !JSON_TYPE.test(type)) throw unsupported('content-type', type, 'send application/json');
  const encoding = header('content-encoding')?.trim();
  if (encoding && !/^identity$/i.test(encoding)) throw unsupported('content-encoding', encoding, 'send it uncompressed');
  if (Number(header('content-length') ?? 0) > GATEWAY_LIMITS.bodyBytes) throw tooLarge();
  const text = typeof body === 'string' ? body : await body();
  if (text.length > GATEWAY_LIMITS.bodyBytes) throw tooLarge();
  return text;
}

export function parseJson(text: string): unknown {
  const { nesting, values } = sizeOfJson(text);
  if (nesting > GATEWAY_LIMITS.nesting) {
    throw new TrainyardError('REQUEST_INVALID', `the body is nested deeper than ${GATEWAY_LIMITS.nesting} levels`);
  }
  if (values > GATEWAY_LIMITS.values) {
    throw new TrainyardError(
      'REQUEST_INVALID',
      `the body holds some ${values} values; at most ${GATEWAY_LIMITS.values} are read`,
    );
  }
  try {
    return JSON.parse(text);
  } catch (thrown) {
    const found = text === '' ? 'it is empty' : messageOf(thrown).slice(0, 200);
    throw new TrainyardError('REQUEST_INVALID', `the body is not valid JSON: ${found}`);
  }
}

function unsupported(header: string, value: string, hint: string): Refusal {
  return new Refusal('unsupported_media_type', `${header}: ${value.slice(0, 80)} is not read here`, hint);
}
