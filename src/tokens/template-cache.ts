/**
 * Caches what a template writes around ordinary texts. Most new messages are a plain text by a user or a tool, and a template that inserts
 * such texts unchanged need not run for each of them.
 *
 * A cached piece is used only after probes: inserting texts of several kinds into it gave exactly what the template wrote. And only for texts
 * that the template cannot treat specially: no white space at the edges, nothing that the template searches for, nothing that could be
 * part of a control token. Everything else is rendered.
 */
import { tried } from '../core/errors.ts';
import type { Message } from '../core/types.ts';
import { WHITE_SPACE } from './jinja.ts';

/** The rendered text after an assistant turn. */
export interface TextAfterTurn {
  readonly text: string;
  readonly keepsReasoning: boolean;
  /** Whether the template still writes the messages before the turn as it did. */
  readonly appends: boolean;
  /** Removes the protection from a part of the text. */
  restore(text: string): string;
}

/** `S`: what else the rendering depends on. */
type Render<S> = (next: readonly Message[], setting: S) => TextAfterTurn | undefined;

interface RenderedPiece {
  /** The text around the messages' texts: one part more than there are messages. */
  readonly parts: readonly string[];
  readonly after: TextAfterTurn;
}

const SAMPLES = [
  'a',
  'How much is it, and when?',
  'one\n\n  two\t"three" \\n',
  '{"price": 3.0, "of": ["é", 1]}',
  '漢字 🙂 & <b>',
];
const MOST_PIECES = 256;
const MOST_MESSAGES = 8;

/** `isSafe`: whether a text can be rendered without protection. */
export function cachedRendering<S>(render: Render<S>, source: string, isSafe: (text: string) => boolean): Render<S> {
  const pieces = new Map<string, RenderedPiece | undefined>();
  const { within, edges } = soughtIn(source);
  const isOrdinary = (text: string) =>
    hasPlainEdges(text) &&
    isSafe(text) &&
    !within.some((literal) => text.includes(literal)) &&
    !edges.some((literal) => text.startsWith(literal) || text.endsWith(literal));

  return (next, setting) => {
    if (next.length > MOST_MESSAGES || !next.every((message) => isBare(message) && isOrdinary(message.content!))) {
      return render(next, setting);
    }
    const key = JSON.stringify([setting, next.map(({ role, tool_call_id: id }) => [role, id !== undefined])]);
    if (!pieces.has(key)) {
      if (pieces.size >= MOST_PIECES) pieces.clear();
      pieces.set(key, renderPiece(render, next, setting, source));
    }
    const piece = pieces.get(key);
    if (piece === undefined) return render(next, setting);
    return {
      ...piece.after,
      text: filled(
        piece.parts,
        next.map(({ content }) => content!),
      ),
    };
  };
}

/** Whether it neither begins nor ends with white space, in Python's sense or JavaScript's. */
function hasPlainEdges(text: string): boolean {
  return text !== '' && text.trim() === text && !WHITE_SPACE.includes(text[0]!) && !WHITE_SPACE.includes(text.at(-1)!);
}

/** Whether the message is plain text. A result may name its call; templates that use the name get no cached piece. */
function isBare({ role, content, tool_calls, tool_call_id, name }: Message): boolean {
  const isText = (role === 'user' || role === 'tool') && typeof content === 'string' && !tool_calls?.length;
  return isText && name === undefined && tool_call_id !== '';
}

function renderPiece<S>(render: Render<S>, next: readonly Message[], setting: S, source: string): RenderedPiece | undefined {
  const slots = next.map((_, i) => slotIn(source, i));
  const withTexts = (messages: readonly Message[], texts: readonly string[]): TextAfterTurn | undefined => {
    const rendered = tried(() =>
      render(
        messages.map((message, i) => ({ ...message, content: texts[i]! })),
        setting,
      ),
    );
    return rendered && { ...rendered, text: rendered.restore(rendered.text), restore: (text) => text };
  };
  const after = withTexts(next, slots);
  const parts = after && partsOf(after.text, slots);
  if (after === undefined || parts === undefined) return undefined;
  const agrees = (messages: readonly Message[], texts: readonly string[]): boolean => {
    const rendered = withTexts(messages, texts);
    if (rendered?.text !== filled(parts, texts)) return false;
    return rendered.keepsReasoning === after.keepsReasoning && rendered.appends === after.appends;
  };
  const samples = SAMPLES.map((_, shift) => next.map((__, i) => SAMPLES[(i + shift) % SAMPLES.length]!));
  const renamed = [0, 1].map((longer) => next.map((message) => withOtherId(message, longer)));
  const holds = samples.every((texts) => agrees(next, texts)) && renamed.every((messages) => agrees(messages, samples[0]!));
  return holds ? { parts, after } : undefined;
}

/** The message with a longer id, or one of a single character: some templates count characters. */
function withOtherId(message: Message, longer: number): Message {
  const { tool_call_id: id } = message;
  if (id === undefined) return message;
  return { ...message, tool_call_id: (id.startsWith('x') ? 'y' : 'x').repeat(longer * id.length + 1) };
}

/** The text around the slots; undefined unless each slot occurs exactly once, in order. */
function partsOf(text: string, slots: readonly string[]): readonly string[] | undefined {
  const parts: string[] = [];
  let rest = text;
  for (const slot of slots) {
    const [before, ...behind] = rest.split(slot);
    if (behind.length !== 1) return undefined;
    parts.push(before!);
    rest = behind[0]!;
  }
  return [...parts, rest];
}

function filled(parts: readonly string[], texts: readonly string[]): string {
  return parts.map((part, i) => part + (texts[i] ?? '')).join('');
}

/** A word that does not occur in the template. */
function slotIn(source: string, place: number): string {
  let slot = `slot${place}q`;
  while (source.includes(slot)) slot += 'q';
  return slot;
}

/** The strings that the template searches for within texts or splits them at (`within`), and those it compares whole texts or their ends with (`edges`). */
function soughtIn(source: string) {
  const literal = String.raw`(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")`;
  const all = (pattern: string) => Array.from(source.matchAll(new RegExp(pattern, 'g')), ([, a, b]) => unescaped(a ?? b ?? ''));
  const method = String.raw`[.|]\s*(?:startswith|endswith|split|rsplit|partition|rpartition|replace|find|index|count|\w*strip|remove\w+)`;
  const within = [
    ...all(String.raw`${literal}\s+(?:not\s+)?in\b`),
    ...all(String.raw`${method}\(\s*${literal}`),
    // A string with a name may be searched for by that name.
    ...all(String.raw`(?<![=!<>])=\s*${literal}`),
  ];
  const edges = [...all(String.raw`[=!]=\s*${literal}`), ...all(String.raw`${literal}\s*[=!]=`)];
  // White space alone is cut at the edges, where an ordinary text has none.
  const visible = (texts: readonly string[]) => [...new Set(texts)].filter((text) => text.trim() !== '');
  return { within: visible(within), edges: visible(edges) };
}

const unescaped = (text: string) => text.replaceAll(/\\(.)/g, (_, c: string) => ({ n: '\n', t: '\t' })[c] ?? c);
