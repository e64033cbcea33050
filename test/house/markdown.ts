/**
 * Markdown as far as the documentation checks need it: sections, table rows, fenced blocks, links and the anchors of headings.
 *
 * Not a full parser: tables have no escaped pipes, fences are closed, and links are inline or reference definitions.
 */
import { existsSync } from 'node:fs';
import { posix } from 'node:path';

export interface Section {
  readonly title: string;
  /** Number of `#`. */
  readonly depth: number;
  readonly lines: readonly string[];
}

/** The sections of a page, each with the lines up to the next heading of any depth. Fenced text holds no headings. */
export function sectionsOf(text: string): readonly Section[] {
  const sections: { title: string; depth: number; lines: string[] }[] = [];
  let fenced = false;
  for (const line of text.split('\n')) {
    if (/^\s*```/.test(line)) fenced = !fenced;
    const heading = fenced ? null : /^(#{1,6})\s+(.*?)\s*#*$/.exec(line);
    if (heading === null) sections.at(-1)?.lines.push(line);
    else sections.push({ title: heading[2] ?? '', depth: heading[1]?.length ?? 0, lines: [] });
  }
  return sections;
}

/** The cells of every table row but the ruler, header rows included. */
export function tableRows(text: string): readonly (readonly string[])[] {
  const rows = text.split('\n').filter((line) => /^\s*\|.*\|\s*$/.test(line) && !/^[\s|:-]+$/.test(line));
  return rows.map((row) =>
    row
      .trim()
      .slice(1, -1)
      .split('|')
      .map((cell) => cell.trim()),
  );
}

/** The text of each fenced block of a language. */
export function fencedBlocks(text: string, language: string): readonly string[] {
  const blocks = text.matchAll(/^\s*```(\S*)[^\n]*\n([\s\S]*?)^\s*```/gm);
  return [...blocks].filter((block) => block[1] === language).map((block) => (block[2] ?? '').trimEnd());
}

/** The lines inside fenced blocks of a language. */
export function fencedLines(text: string, language: string): readonly string[] {
  return fencedBlocks(text, language).flatMap((block) => block.split('\n'));
}

/** Links of a page that lead nowhere. `read` gives the text of a Markdown file by its repository path. */
export function linkFaults(path: string, root: string, read: (path: string) => string): readonly string[] {
  return linksOf(read(path)).flatMap((link) => {
    const [file = '', anchor] = decodeURI(link).split('#');
    const target = file === '' ? path : posix.join(file.startsWith('/') ? '' : posix.dirname(path), file);
    const onDisk = posix.join(root, target);
    if (file !== '' && (target.startsWith('..') || !existsSync(onDisk)))
      return [`${path}: link ${link} names ${target}, which does not exist; correct or remove it`];
    if (anchor === undefined || !target.endsWith('.md')) return [];
    return anchorsOf(read(target)).has(anchor)
      ? []
      : [`${path}: link ${link} names a heading that ${target} does not have; correct it`];
  });
}

/** Links that are not to another host. */
function linksOf(text: string): readonly string[] {
  const prose = text.replace(/^\s*```[\s\S]*?^\s*```/gm, '').replace(/`[^`\n]*`/g, '');
  const inline = [...prose.matchAll(/\]\(\s*<?([^)\s>]+)>?(?:\s+"[^"]*")?\s*\)/g)];
  const definitions = [...prose.matchAll(/^\s*\[[^\]]+\]:\s+<?([^\s>]+)/gm)];
  return [...inline, ...definitions].map((match) => match[1] ?? '').filter((link) => !/^(?:[a-z][a-z+.-]*:|\/\/)/i.test(link));
}

/** Anchors as GitHub makes them; the second heading of one name ends in `-1`. */
function anchorsOf(text: string): ReadonlySet<string> {
  const anchors = new Set<string>();
  for (const { title } of sectionsOf(text)) {
    const slug = title
      .toLowerCase()
      .replace(/[^\p{L}\p{N}\s_-]/gu, '')
      .replace(/\s/g, '-');
    let anchor = slug;
    for (let copy = 1; anchors.has(anchor); copy++) anchor = `${slug}-${copy}`;
    anchors.add(anchor);
  }
  return anchors;
}
