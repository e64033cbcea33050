/**
 * Ids → text for tokenizers whose tokens spell bytes, as nearly all of today's do: each id's bytes are looked up and put together, instead
 * of spelling every byte as a character and reading it back. The library's way stays the truth that this one is tested against.
 *
 * Bytes that are no UTF-8 show as U+FFFD. Texts that stand for themselves (control tokens) end a run of bytes.
 */

/** Printable bytes are spelt as themselves, the others by the characters from U+0100 on, in order. Gives the bytes in order. */
export function spelling(): ReadonlyMap<string, number> {
  const isPrintable = (byte: number): boolean => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
  const bytes = new Map<string, number>();
  let others = 0;
  for (let byte = 0; byte < 256; byte++) bytes.set(String.fromCodePoint(isPrintable(byte) ? byte : 256 + others++), byte);
  return bytes;
}

export interface Spelling {
  /** Text of an id that spells no bytes. */
  verbatim(id: number): string | undefined;
  /** How the bytes of an id are spelt. */
  spelt(id: number): string;
}

export function byteLevelDecoder({ verbatim, spelt }: Spelling): (ids: Iterable<number>) => string {
  const byteOf = spelling();
  const utf8 = new TextDecoder('utf-8', { ignoreBOM: true });
  const known = new Map<number, string | Uint8Array>();
  let run = new Uint8Array(1024);
  let length = 0;

  const look = (id: number): string | Uint8Array => {
    const found = verbatim(id) ?? Uint8Array.from(spelt(id), (character) => byteOf.get(character) ?? 0);
    known.set(id, found);
    return found;
  };
  const add = (bytes: Uint8Array): void => {
    if (length + bytes.length > run.length) {
      const longer = new Uint8Array(2 * (length + bytes.length));
      longer.set(run);
      run = longer;
    }
    run.set(bytes, length);
    length += bytes.length;
  };
  const endRun = (): string => {
    const text = length === 0 ? '' : utf8.decode(run.subarray(0, length));
    length = 0;
    return text;
  };

  return (ids) => {
    let text = '';
    length = 0;
    for (const id of ids) {
      const found = known.get(id) ?? look(id);
      if (typeof found === 'string') text += endRun() + found;
      else add(found);
    }
    return text + endRun();
  };
}
