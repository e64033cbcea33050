/**
 * Foreign text, made safe to be shown to a judge: cleaned, cut to a length, and put between lines with a random mark that whoever wrote
 * the text could not know.
 *
 * This makes it hard to pass orders off as the developer's. It cannot make a model immune to what it reads; the check in the verdict
 * (`verdict.ts`) catches a judge that was led astray entirely.
 */
import { printable } from '../../core/describe.ts';

export interface Shown {
  readonly title: string;
  readonly text: string;
}

/**
 * Characters that change how text is shown or are not shown at all, in which orders can hide: bidirectional controls, invisible operators, tags,
 * selectors of variants that nothing has, byte order marks. The joiners and the selectors of emoji stay: languages and faces need them.
 */
const UNSEEN =
  /[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]|[\ufe00-\ufe0d]|[\u{e0000}-\u{e01ef}]/gu;
/** What looks like one of our own lines. */
const FENCE_LIKE = /<{3,}(?=\s*(?:begin|end)\b)/gi;
/** Many servers take these for the marks between messages, wherever they stand: of ChatML and Llama 3, DeepSeek, Gemma, Llama 2 and Mistral. */
const TEMPLATE_MARK =
  /<(?=[|\uff5c]|<\/?SYS>>|\/?(?:start_of_turn|end_of_turn|s|bos|eos|think|thinking)>)|\[(?=\/?(?:INST|SYSTEM_PROMPT)\])/gi;

/** Of at most about `most` characters, the middle left out. */
export function cleaned(text: string, most: number): string {
  const clean = printable(text.toWellFormed()).replace(UNSEEN, '').replace(FENCE_LIKE, '< < <').replace(TEMPLATE_MARK, '$& ');
  if (clean.length <= most) return clean;
  const half = Math.floor(most / 2);
  const left = clean.length - 2 * half;
  return `${clean.slice(0, half)}\n[… ${left} characters left out here …]\n${clean.slice(-half)}`.toWellFormed();
}

/** Cleaned texts only. */
export function fenced(parts: readonly Shown[], mark: string): string {
  const between = ({ title, text }: Shown): string => {
    // Nobody can guess it; that it is nowhere inside is what the rest relies on, so it is not left to chance.
    const inside = text.replaceAll(mark, '[mark]');
    return `<<<BEGIN ${title} ${mark}>>>\n${inside}\n<<<END ${title} ${mark}>>>`;
  };
  return parts.map(between).join('\n\n');
}
