/**
 * Prompts are what Python's Jinja makes of the same conversation and template, rendered there beforehand: it is what the models were
 * trained on. Most of these conversations hold something that JavaScript writes in another way: white space to be stripped, numbers,
 * empty lists, equal messages.
 */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { Message, Tool } from '../../../src/core/types.ts';
import { MODELS, type ModelName } from './models.ts';

interface Rendering {
  readonly model: ModelName;
  readonly messages: readonly Message[];
  readonly tools: readonly Tool[];
  readonly text: string;
}

const lines = (await readFile(join(import.meta.dirname, 'python-renderings.jsonl'), 'utf8')).trimEnd().split('\n');
const renderings = lines.map((line) => JSON.parse(line) as Rendering);

describe('the prompt of a conversation', () => {
  it.each(Object.keys(MODELS) as ModelName[])('is what Python writes for %s', async (name) => {
    const { renderer, tokenizer } = await MODELS[name]();
    const own = renderings.filter(({ model }) => model === name);
    expect(own.length).toBeGreaterThan(2);
    for (const { messages, tools, text } of own) {
      const ids = renderer.open(messages, tools);
      expect(ids).toEqual(tokenizer.encodeRendered(text));
      expect(tokenizer.decode(ids).normalize()).toBe(text.normalize());
    }
  });
});
