/**
 * Where in a text the final answer is. Thoughts in <think> tags are left out first. Then, in this order: the last `\boxed{…}`; the last
 * `<answer>…</answer>`; whichever comes last of a `####` line and "the answer is …". What is marked but empty, or never closed, is an empty
 * answer: an earlier one does not count in its place.
 *
 * Every scan is linear in the text, and only its end is read.
 */

/** Of the end of a text. An answer stands at the end; what is before is not looked at. */
const MOST_CHARS = 100_000;
const BOX = /\\(?:boxed|fbox)(?![A-Za-z])/g;
const CLAIM = /\b(?:final[ \t]{1,3})?answer[*_]{0,2}(?:[ \t]{0,3}(?:is|:|=)[*_]{0,2}){1,2}/gi;
const HASHES = /^[ \t]{0,8}#{4}(?!#)/gm;
/** What follows the answer in its sentence. */
const BEHIND = /[,;]?\s(?:because|since|as|which|so|where)\s|\.\s+(?=\p{Lu})|\.\s*$|\.?\s*\*\*/u;

export interface FinalAnswer {
  readonly text: string;
  /** Whether the text itself said that this is the answer. */
  readonly marked: boolean;
}

/** The end of a text, without what was only thought. A thought that never ends leaves nothing. */
export function spokenPart(text: string): string {
  const end = text.slice(-MOST_CHARS);
  const thought = end.lastIndexOf('</think>');
  if (thought !== -1) return end.slice(thought + '</think>'.length);
  return end.includes('<think>') ? '' : end;
}

/** The text that is marked as the answer; undefined where none is. */
export function markedAnswer(spoken: string): string | undefined {
  return lastBoxed(spoken) ?? lastTagged(spoken) ?? lastClaimed(spoken);
}

/** What a reference says: datasets write whole solutions, in which `\boxed` or `####` marks the answer. */
export function referenceAnswer(answer: string): string {
  const marked = lastBoxed(answer) ?? lastLineWithHashes(answer)?.text;
  return marked === undefined || marked === '' ? answer.trim() : marked;
}

/** What the braces of the last box hold; '' where they are not closed. */
export function lastBoxed(text: string): string | undefined {
  const start = [...text.matchAll(BOX)].at(-1);
  if (start === undefined) return undefined;
  return braced(text, start.index + start[0].length);
}

/** Everything that is in a box, outermost boxes only. */
export function allBoxed(text: string): readonly string[] {
  const found: string[] = [];
  let end = 0;
  for (const { index, 0: command } of text.matchAll(BOX)) {
    if (index < end) continue;
    const content = braced(text, index + command.length);
    found.push(content);
    end = index + command.length + content.length;
  }
  return found;
}

/** From the brace on to the one that closes it; without a brace the one word that is there. */
function braced(text: string, from: number): string {
  const open = text.slice(from, from + 8).search(/\S/);
  if (open === -1) return '';
  if (text[from + open] !== '{') return /^\s*(\\?[^\s{}$]{1,40})/.exec(text.slice(from, from + 60))?.[1] ?? '';
  let depth = 0;
  for (let at = from + open; at < text.length; at++) {
    const char = text[at];
    if (char === '\\') at++;
    else if (char === '{') depth++;
    else if (char === '}' && --depth === 0) return text.slice(from + open + 1, at).trim();
  }
  return '';
}

function lastTagged(text: string): string | undefined {
  const open = text.lastIndexOf('<answer>');
  if (open === -1) return undefined;
  const close = text.indexOf('</answer>', open);
  return close === -1 ? '' : text.slice(open + '<answer>'.length, close).trim();
}

interface Place {
  readonly at: number;
  readonly text: string;
}

function lastClaimed(text: string): string | undefined {
  const hashes = lastLineWithHashes(text);
  const claim = lastClaim(text);
  const later = hashes === undefined || (claim !== undefined && claim.at > hashes.at) ? claim : hashes;
  return later?.text;
}

function lastLineWithHashes(text: string): Place | undefined {
  const found = [...text.matchAll(HASHES)].at(-1);
  if (found === undefined) return undefined;
  return { at: found.index, text: withoutStop(lineFrom(text, found.index + found[0].length)) };
}

/** "The answer is …", up to what is said of it: "because …", the next sentence. */
export function lastClaim(text: string): Place | undefined {
  const found = [...text.matchAll(CLAIM)].at(-1);
  if (found === undefined) return undefined;
  const line = lineFrom(text, found.index + found[0].length);
  const behind = BEHIND.exec(`${line} `);
  return { at: found.index, text: withoutStop(behind === null ? line : line.slice(0, behind.index)) };
}

/** The rest of a line; where that is empty, the next line that is not. */
function lineFrom(text: string, from: number): string {
  return /\S.*/.exec(text.slice(from, from + 2_000))?.[0].trim() ?? '';
}

const withoutStop = (line: string): string => line.replace(/[.\s]{1,20}$/, '').trim();

/** The last line that is not empty. */
export function lastLine(spoken: string): string {
  const trimmed = spoken.trimEnd();
  return withoutStop(trimmed.slice(trimmed.lastIndexOf('\n') + 1).trim());
}

const DENIES = /\b(?:not|never|wrong|incorrect|false)\b|n't\b/i;
const FORMULA = /\$\$?([^$]{1,1000})\$\$?|\\\(([^$]{1,1000}?)\\\)|\\\[([^$]{1,1000}?)\\\]/g;

/** The one formula of a line of prose; undefined where there are several, or where the prose denies it. */
export function onlyFormula(line: string): string | undefined {
  if (line.length > 4_000) return undefined;
  const found = [...line.matchAll(FORMULA)];
  if (found.length !== 1 || DENIES.test(line)) return undefined;
  return (found[0]![1] ?? found[0]![2] ?? found[0]![3])!.trim();
}
