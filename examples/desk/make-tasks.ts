/**
 * Writes the desk's tasks: `node examples/desk/make-tasks.ts`. Same script, same files; a test compares.
 *
 * What the customer wants is both `metadata.want`, which the workflow gives to the customer's seat, and the answer, which the
 * grader compares the order with. Brands of training and held-out items differ.
 */
import { writeFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import { drawOpening, drawWant, wantText } from '../../models/desk-domain.ts';
import type { Split } from '../../models/item-names.ts';
import { seededRandom } from '../../models/random.ts';

/** File name → text. */
export function makeDeskFiles(): Readonly<Record<string, string>> {
  return {
    'train.jsonl': taskLines('train', 'training', 7_201, 1_000),
    'held-out.jsonl': taskLines('held-out', 'held-out', 9_201, 300),
  };
}

function taskLines(prefix: string, split: Split, seed: number, size: number): string {
  const random = seededRandom(seed);
  const lines = new Map<string, string>();
  while (lines.size < size) {
    const wanted = drawWant(random, split);
    const prompt = drawOpening(random, wanted);
    const want = wantText(wanted);
    const id = `${prefix}-${String(lines.size + 1).padStart(4, '0')}`;
    if (!lines.has(prompt)) lines.set(prompt, JSON.stringify({ id, prompt, metadata: { want } }));
  }
  return `${[...lines.values()].join('\n')}\n`;
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  for (const [name, text] of Object.entries(makeDeskFiles())) writeFileSync(new URL(name, import.meta.url), text);
}
