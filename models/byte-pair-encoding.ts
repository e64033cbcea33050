/**
 * Trains a byte-level BPE: from text to a vocabulary and an ordered list of merges, as Hugging Face tokenizers keep them.
 *
 * Slow and obvious: all pairs are counted again for every merge, which takes seconds for some hundred merges over a corpus of
 * a few thousand different words. Ties go to the pair that sorts first, so the result depends on the text alone.
 */

export interface BytePairEncoding {
  /** Token text (bytes written as printable characters) → id. */
  readonly vocabulary: Readonly<Record<string, number>>;
  readonly merges: readonly (readonly [string, string])[];
}

interface Word {
  symbols: string[];
  readonly count: number;
}

/** `wordPattern` cuts the text into words; no merge crosses a word. Reserved tokens take the first ids. */
export function trainBytePairEncoding(
  texts: Iterable<string>,
  settings: { readonly wordPattern: RegExp; readonly reserved: readonly string[]; readonly vocabularySize: number },
): BytePairEncoding {
  const words = countWords(texts, settings.wordPattern);
  const vocabulary: Record<string, number> = {};
  let size = 0;
  for (const token of [...settings.reserved, ...byteCharacters().toSorted(byCodePoint)]) vocabulary[token] = size++;

  const merges: (readonly [string, string])[] = [];
  while (size < settings.vocabularySize) {
    const pair = commonestPair(words);
    if (pair === undefined) break;
    merges.push(pair);
    const merged = pair[0] + pair[1];
    if (vocabulary[merged] === undefined) vocabulary[merged] = size++;
    for (const word of words) word.symbols = merge(word.symbols, pair);
  }
  return { vocabulary, merges };
}

function countWords(texts: Iterable<string>, wordPattern: RegExp): readonly Word[] {
  const counts = new Map<string, number>();
  for (const text of texts) {
    for (const [word] of text.matchAll(wordPattern)) counts.set(word, (counts.get(word) ?? 0) + 1);
  }
  const characters = byteCharacters();
  return [...counts].map(([word, count]) => {
    const symbols = [...Buffer.from(word)].map((byte) => characters[byte] ?? '');
    return { symbols, count };
  });
}

/** Pairs that occur once are not worth a token. */
function commonestPair(words: readonly Word[]): readonly [string, string] | undefined {
  const counts = new Map<string, number>();
  for (const { symbols, count } of words) {
    for (let i = 0; i + 1 < symbols.length; i++) {
      const pair = `${symbols[i]} ${symbols[i + 1]}`;
      counts.set(pair, (counts.get(pair) ?? 0) + count);
    }
  }
  let best: string | undefined;
  let bestCount = 1;
  for (const [pair, count] of counts) {
    if (count > bestCount || (count === bestCount && best !== undefined && pair < best)) {
      best = pair;
      bestCount = count;
    }
  }
  const [left, right] = best?.split(' ') ?? [];
  return left === undefined || right === undefined ? undefined : [left, right];
}

function merge(symbols: readonly string[], [left, right]: readonly [string, string]): string[] {
  const merged: string[] = [];
  for (let i = 0; i < symbols.length; i++) {
    const symbol = symbols[i] ?? '';
    if (symbol === left && symbols[i + 1] === right) {
      merged.push(left + right);
      i++;
    } else {
      merged.push(symbol);
    }
  }
  return merged;
}

/** GPT-2's table: printable bytes stand for themselves, the others for characters from U+0100 on. */
function byteCharacters(): string[] {
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    return String.fromCodePoint(printable ? byte : next++);
  });
}

function byCodePoint(a: string, b: string): number {
  return (a.codePointAt(0) ?? 0) - (b.codePointAt(0) ?? 0);
}
