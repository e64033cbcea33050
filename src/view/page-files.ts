/** The files of the page, which `npm run build:page` makes, and the HTML around them. */
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { TrainyardError } from '../core/errors.ts';

/** Throws FILE_NOT_FOUND. */
export function pageFile(name: 'page.js' | 'page.css'): string {
  const path = fileURLToPath(new URL(`../../dist/page/${name}`, import.meta.url));
  if (existsSync(path)) return path;
  throw new TrainyardError('FILE_NOT_FOUND', `the page is not built: ${path} does not exist`, 'npm run build:page');
}

function escaped(text: string): string {
  const names: Readonly<Record<string, string>> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' };
  return text.replaceAll(/[&<>"]/g, (character) => names[character]!);
}

/** `head` and `body`: HTML. */
export function html(title: string, head: string, body: string): string {
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escaped(title)}</title>
<link rel="icon" href="data:,">
${head}
</head>
<body>
${body}
</body>
</html>
`;
}

/** As served: it loads its script and style from the server. */
export function shell(title: string): string {
  const head = '<link rel="stylesheet" href="/page.css">';
  return html(title, head, '<div id="app"></div>\n<script type="module" src="/page.js"></script>');
}
