/**
 * The code in an answer: the last fenced block of the language, else the last fenced block of any, else the whole text.
 *
 * A fence that is never closed runs to the end: what a token limit cut off is still what was said.
 */
export type CodeLanguage = 'javascript' | 'python';

const NAMES: Readonly<Record<CodeLanguage, readonly string[]>> = {
  javascript: ['javascript', 'js', 'mjs', 'cjs', 'node', 'ecmascript'],
  python: ['python', 'py', 'python3', 'python2'],
};

interface FoundCode {
  readonly code: string;
  /** Whether it was in a block; without any, the whole text is taken. */
  readonly isFenced: boolean;
}

export function codeInText(text: string, language: CodeLanguage): FoundCode {
  const blocks = fencedBlocks(text);
  const own = blocks.findLast(({ name }) => NAMES[language].includes(name));
  const block = own ?? blocks.findLast(({ name }) => name === '') ?? blocks.at(-1);
  return { code: block?.code ?? text, isFenced: block !== undefined };
}

interface Block {
  readonly name: string;
  readonly code: string;
}

/** By lines, as Markdown has it: a fence closes with at least as many of the same character as it opened with. */
function fencedBlocks(text: string): readonly Block[] {
  const blocks: Block[] = [];
  let open: { readonly fence: string; readonly name: string; readonly indent: number; readonly lines: string[] } | undefined;
  const close = (): void => {
    if (open !== undefined) blocks.push({ name: open.name, code: `${open.lines.join('\n')}\n` });
    open = undefined;
  };
  for (const line of text.split(/\r?\n/)) {
    const [, indent = '', fence, rest = ''] = /^(\s*)(`{3,}|~{3,})(.*)$/.exec(line) ?? [];
    if (open === undefined) {
      if (fence !== undefined && !rest.includes('`')) {
        open = {
          fence,
          name: rest
            .trim()
            .split(/[\s{,:]/)[0]!
            .toLowerCase(),
          indent: indent.length,
          lines: [],
        };
      }
    } else if (fence?.startsWith(open.fence) && rest.trim() === '') close();
    else open.lines.push(line.slice(Math.min(open.indent, line.length - line.trimStart().length)));
  }
  close();
  return blocks;
}
