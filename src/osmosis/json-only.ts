/** Of an object, what can be written as JSON and read again as it was. */
import { asJson } from '../core/json.ts';

/** The rest is named in one warning. */
export function jsonOnly(given: object, called: string, warn: (text: string) => void): Readonly<Record<string, unknown>> {
  const dropped: string[] = [];
  const kept = Object.entries(given).flatMap(([name, value]: [string, unknown]) => {
    const json = name === '__proto__' ? undefined : asJson(value);
    if (json === undefined && value !== undefined) dropped.push(name);
    return json === undefined ? [] : [[name, json] as const];
  });
  if (dropped.length > 0) warn(`${called} without ${dropped.slice(0, 20).join(', ')}: not finite, or not JSON`);
  return Object.fromEntries(kept);
}
