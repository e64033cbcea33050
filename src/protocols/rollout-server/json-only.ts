/** Of an object, what can be written as JSON and read again as it was. */
import { asJson } from '../../core/json.ts';

const MOST_JSON = 1_000_000;

/** The rest is named in one warning. */
export function jsonOnly(given: object, called: string, warn: (text: string) => void): Readonly<Record<string, unknown>> {
  const dropped: string[] = [];
  const kept = Object.entries(given).flatMap(([name, value]: [string, unknown]) => {
    const isKept = value === undefined || (name !== '__proto__' && isJson(value));
    if (!isKept) dropped.push(name);
    return isKept && value !== undefined ? [[name, asJson(value, MOST_JSON)] as const] : [];
  });
  if (dropped.length > 0) warn(`${called} without ${dropped.slice(0, 20).join(', ')}: not finite, or not JSON`);
  return Object.fromEntries(kept);
}

function isJson(value: unknown): boolean {
  if (typeof value === 'number') return Number.isFinite(value);
  if (typeof value === 'object' && value !== null && hasNonFinite(value, new Set())) return false;
  return asJson(value, MOST_JSON) !== undefined;
}

/** JSON would write them as null, which is something else. */
function hasNonFinite(value: object, seen: Set<object>): boolean {
  if (seen.has(value)) return true;
  seen.add(value);
  return Object.values(value).some((item: unknown) => {
    if (typeof item === 'number') return !Number.isFinite(item);
    if (typeof item === 'function' || typeof item === 'symbol' || typeof item === 'bigint') return true;
    return typeof item === 'object' && item !== null && hasNonFinite(item, new Set(seen));
  });
}
