/** What the values of flags are read as; what they cannot be is said of the flag. */
import { InvalidArgumentError } from 'commander';
import { ALGORITHMS, type Algorithm, WEIGHTINGS, type Weighting } from '../trainer/advantages.ts';

export function number(text: string): number {
  const value = Number(text);
  if (text.trim() === '' || !Number.isFinite(value)) {
    throw new InvalidArgumentError(`expected a number, found ${JSON.stringify(text)}`);
  }
  return value;
}

const SECONDS = { s: 1, m: 60, h: 3600 } as const;

export function duration(text: string): number {
  const parsed = /^(\d+(?:\.\d+)?)([smh]?)$/.exec(text);
  if (parsed === null) throw new InvalidArgumentError(`expected a time such as 90s, 10m or 2h, found ${JSON.stringify(text)}`);
  return Number(parsed[1]) * SECONDS[(parsed[2] || 's') as keyof typeof SECONDS];
}

export function algorithm(text: string): Algorithm {
  const known = ALGORITHMS.find((name) => name === text);
  if (known === undefined) {
    throw new InvalidArgumentError(`expected ${ALGORITHMS.join(', ')}, found ${JSON.stringify(text)}`);
  }
  return known;
}

export function weighting(text: string): Weighting {
  const known = WEIGHTINGS.find((name) => name === text);
  if (known !== undefined) return known;
  throw new InvalidArgumentError(`expected ${WEIGHTINGS.join(' or ')}, found ${JSON.stringify(text)}`);
}

export function roles(text: string): string[] {
  const names = text.split(',').map((name) => name.trim());
  if (names.some((name) => name === '')) throw new InvalidArgumentError('expected names separated by commas');
  return names;
}

export function natural(text: string): number {
  if (!/^\d{1,15}$/.test(text))
    throw new InvalidArgumentError(`expected a whole number, 0 or more, found ${JSON.stringify(text)}`);
  return Number(text);
}

export function positive(text: string): number {
  const value = natural(text);
  if (value > 1_000_000) throw new InvalidArgumentError('expected at most 1000000');
  if (value === 0) throw new InvalidArgumentError('expected at least 1');
  return value;
}

export function port(text: string): number {
  const value = natural(text);
  if (value > 65_535) throw new InvalidArgumentError('expected at most 65535');
  return value;
}

export function temperature(text: string): number {
  const value = number(text);
  if (value < 0 || value > 2) throw new InvalidArgumentError(`expected a number from 0 to 2, found ${JSON.stringify(text)}`);
  return value;
}

export function share(text: string): number {
  const value = number(text);
  if (value < 0 || value > 1) throw new InvalidArgumentError(`expected a share from 0 to 1, found ${JSON.stringify(text)}`);
  return value;
}

export function groupSize(text: string): number {
  const value = positive(text);
  if (value < 2) throw new InvalidArgumentError('expected at least 2: a rollout is compared with the others of its group');
  return value;
}
