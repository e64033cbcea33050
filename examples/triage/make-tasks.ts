/**
 * Writes triage's tasks: `node examples/triage/make-tasks.ts`. Same script, same files; a test compares.
 *
 * Held-out messages pair two sentences that are paired nowhere else, about brands that are named nowhere else.
 */
import { writeFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import type { Split } from '../../models/item-names.ts';
import { seededRandom } from '../../models/random.ts';
import { drawMessage } from '../../models/triage-domain.ts';

/** File name → text. */
export function makeTriageFiles(): Readonly<Record<string, string>> {
  return {
    'train.jsonl': taskLines('train', 'training', 7_101, 1_000),
    'held-out.jsonl': taskLines('held-out', 'held-out', 9_101, 300),
  };
}

function taskLines(prefix: string, split: Split, seed: number, size: number): string {
  const random = seededRandom(seed);
  const lines = new Map<string, string>();
  while (lines.size < size) {
    const { text, happened, wanted } = drawMessage(random, split);
    const id = `${prefix}-${String(lines.size + 1).padStart(4, '0')}`;
    if (!lines.has(text)) lines.set(text, JSON.stringify({ id, prompt: text, answer: wanted, metadata: { happened } }));
  }
  return `${[...lines.values()].join('\n')}\n`;
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  for (const [name, text] of Object.entries(makeTriageFiles())) writeFileSync(new URL(name, import.meta.url), text);
}
