/** Numbers and endings in the words that the plain lines and the screen share. */
import type { RunEnding, StepReport } from '../core/events.ts';

export function percent(share: number): string {
  return `${(100 * share).toFixed(1)} %`;
}

/** With so many digits after the point; what would be lost in them keeps two digits of its own: 0.00042. */
export function figure(value: number, digits: number): string {
  return value === 0 || Math.abs(value) >= 10 ** (1 - digits) ? value.toFixed(digits) : `${Number(value.toPrecision(2))}`;
}

/** 12.3 s, 45 ms. */
export function took(seconds: number): string {
  return seconds < 0.1 ? `${Math.ceil(1000 * seconds)} ms` : `${seconds.toFixed(1)} s`;
}

/** How the engine's log-probabilities compare with the trainer's. */
export function agreementText({ ratio = 1, offPolicyKl = 0, clipped = 0, largestDifference }: Partial<StepReport>): string {
  const largest = largestDifference === undefined ? [] : [`largest difference ${figure(largestDifference, 3)}`];
  return [`ratio ${figure(ratio, 3)}`, `KL ${figure(offPolicyKl, 3)}`, ...largest, `${percent(clipped)} clipped`].join(' · ');
}

/** 0:07, 12:31, 3:05:09; days from there on. */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const two = (value: number): string => String(value).padStart(2, '0');
  const [days, hours, minutes] = [Math.floor(whole / 86_400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days > 99) return 'over 99 d';
  if (days > 0) return `${days} d ${hours} h`;
  return hours > 0 ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

const COMPACT = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 });

/** 840, 12.4K, 3.1M. */
export function amount(value: number): string {
  return COMPACT.format(value);
}

export function count(n: number, noun: string): string {
  return `${n} ${noun}${n === 1 ? '' : 's'}`;
}

/** Why a run ended before its last step; nothing for one that took them all. */
export const STOPPED: Readonly<Record<RunEnding, string | null>> = {
  steps: null,
  solved: 'every rollout is perfect, there is nothing left to learn',
  patience: 'no evaluation on the way was better than an earlier one for as long as --patience allows',
  'max-time': 'the time it was given is used up',
  'max-tokens': 'the tokens it was given are used up',
  interrupted: 'interrupted',
};

/** Called as a script of this repository. */
export const IS_NPM_SCRIPT = ['trainyard', 'demo'].includes(process.env['npm_lifecycle_event'] ?? '');

/** How this program was called, as far as npm says: what a person can type again. */
const CALLED_AS = IS_NPM_SCRIPT ? 'npm run trainyard --' : process.env['npm_command'] === 'exec' ? 'npx trainyard' : 'trainyard';

/** Commands in a text, written so that they work where this one was called. */
export function asCalled(text: string): string {
  return text.replaceAll(/\btrainyard (?=train |eval |diff |try |preflight |show |serve |curate |verify )/g, `${CALLED_AS} `);
}
