/**
 * What a template writes around ordinary texts, rendered once: most new messages of a conversation are a text by a user or a tool, and a
 * template that inserts such texts as they are need not be run for each of them.
 *
 * A rendered piece is reused only where that was seen to hold: texts of several kinds, put into it, gave what the template itself wrote. And only for
 * texts that no template could treat otherwise: without white space at their edges, without anything that the template looks for in
 * texts, and without what could be taken for a control token. Everything else is rendered.
 */
import type { Message } from '../core/types.ts';
import { WHITE_SPACE } from './jinja.ts';

/** What follows an assistant turn, as text. */
export interface TextAfterTurn {
  readonly text: string;
  readonly keepsReasoning: boolean;
  /** Whether what stood before the turn is still written as it was. */
  readonly appends: boolean;
  /** Takes the protection out of a part of the text. */
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
  const isOrdinary = (text: string): boolean =>
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

/** White space of Python's or of ours. */
function hasPlainEdges(text: string): boolean {
  return text !== '' && text.trim() === text && !WHITE_SPACE.includes(text[0]!) && !WHITE_SPACE.includes(text.at(-1)!);
}

/** A message that is a text and nothing else. A result may name its call; a template that cares about the name is given no piece. */
function isBare({ role, content, tool_calls, tool_call_id, name }: Message): boolean {
  const isText = (role === 'user' || role === 'tool') && typeof content === 'string' && !tool_calls?.length;
  return isText && name === undefined && tool_call_id !== '';
}

function renderPiece<S>(render: Render<S>, next: readonly Message[], setting: S, source: string): RenderedPiece | undefined {
  const slots = next.map((_, i) => slotIn(source, i));
  const withTexts = (messages: readonly Message[], texts: readonly string[]): TextAfterTurn | undefined => {
    const rendered = attempt(() =>
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

/** Longer than the one it has, or of one character: some templates count. */
function withOtherId(message: Message, longer: number): Message {
  const { tool_call_id: id } = message;
  if (id === undefined) return message;
  return { ...message, tool_call_id: (id.startsWith('x') ? 'y' : 'x').repeat(longer * id.length + 1) };
}

/** The text between the slots; undefined unless each stands in it once, in order. */
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

/** A word that the template does not know. */
function slotIn(source: string, place: number): string {
  let slot = `slot${place}q`;
  while (source.includes(slot)) slot += 'q';
  return slot;
}

/** What the template looks for in texts or cuts them at, and what it compares them, or their beginning or end, with. */
function soughtIn(source: string): { readonly within: readonly string[]; readonly edges: readonly string[] } {
  const literal = String.raw`(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")`;
  const all = (pattern: string): readonly string[] =>
    Array.from(source.matchAll(new RegExp(pattern, 'g')), ([, a, b]) => unescaped(a ?? b ?? ''));
  const method = String.raw`[.|]\s*(?:startswith|endswith|split|rsplit|partition|rpartition|replace|find|index|count|\w*strip|remove\w+)`;
  const within = [
    ...all(String.raw`${literal}\s+(?:not\s+)?in\b`),
    ...all(String.raw`${method}\(\s*${literal}`),
    // What has a name may be looked for by it.
    ...all(String.raw`(?<![=!<>])=\s*${literal}`),
  ];
  const edges = [...all(String.raw`[=!]=\s*${literal}`), ...all(String.raw`${literal}\s*[=!]=`)];
  // White space alone is cut at the edges, where an ordinary text has none.
  const visible = (texts: readonly string[]) => [...new Set(texts)].filter((text) => text.trim() !== '');
  return { within: visible(within), edges: visible(edges) };
}

const unescaped = (text: string): string => text.replaceAll(/\\(.)/g, (_, c: string) => ({ n: '\n', t: '\t' })[c] ?? c);

/** Undefined where it throws. */
export function attempt<T>(fn: () => T): T | undefined {
  try {
    return fn();
  } catch {
    return undefined;
  }
}
