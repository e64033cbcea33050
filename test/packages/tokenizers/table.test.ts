/**
 * The table of docs/reference/gateway.md says what is found when these models are loaded.
 */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { Message, Tool } from '../../../src/core/types.ts';
import { responseFormatOf } from '../../../src/tokens/extension.ts';
import type { Renderer } from '../../../src/tokens/renderer.ts';
import { MODELS, type ModelName } from './models.ts';

const text = await readFile(join(import.meta.dirname, '../../../docs/reference/gateway.md'), 'utf8');
const documented = text
  .split('## Chat templates\n\n')[1]!
  .split('\n\n')[1]!
  .split('\n')
  .slice(2)
  .map((row) =>
    row
      .split('|')
      .slice(1, -1)
      .map((cell) => cell.trim()),
  );

const user: Message = { role: 'user', content: 'a' };
const system: Message = { role: 'system', content: 'b' };
const tools: Tool[] = [
  { type: 'function', function: { name: 'f', description: 'd', parameters: { type: 'object', properties: {} } } },
];
const call = { id: 'call00000', type: 'function' as const, function: { name: 'f', arguments: '{}' } };

interface Situation {
  readonly plain: boolean;
  readonly dropped: boolean;
  readonly grows: boolean;
}

/** All kinds of turns and what may follow them: results only where there are calls. */
function situations(renderer: Renderer): readonly Situation[] {
  const found: Situation[] = [];
  for (const offered of [[], tools])
    for (const messages of [[user], [system, user]])
      for (const reasoning of [undefined, 'Hm.'])
        for (const calls of [[], [call]])
          for (const next of [user, { role: 'tool' as const, content: 'c', tool_call_id: call.id }]) {
            if (next.role === 'tool' && calls.length === 0) continue;
            const said: Message = { role: 'assistant', content: 'd', ...(calls.length > 0 ? { tool_calls: calls } : {}) };
            const response = reasoning === undefined ? said : { ...said, reasoning };
            const promptIds = renderer.open(messages, offered);
            const sampledIds = Int32Array.of(renderer.stopIds[0]!);
            const previous = {
              promptIds,
              sampledIds,
              stopReason: 'stop' as const,
              request: { messages, tools: offered },
              response,
            };
            found.push({
              plain: offered.length === 0 && messages.length === 1 && calls.length === 0 && next.role === 'user',
              dropped: reasoning !== undefined && next.role === 'user',
              grows: renderer.extend(previous, [next]) !== undefined,
            });
          }
  return found;
}

function growthOf(renderer: Renderer): string {
  const found = situations(renderer);
  if (found.every(({ grows }) => grows)) return 'always';
  if (found.every(({ grows, dropped }) => grows === !dropped)) return 'until a user message follows reasoning';
  const asked = found.filter(({ plain, grows }) => plain !== grows);
  return asked.length === 0
    ? 'only without tools, system message and calls'
    : `not as any of the others: ${JSON.stringify(asked)}`;
}

describe('the table of templates', () => {
  it('has a row for each model', () => {
    expect(documented.map(([name]) => name)).toEqual(Object.keys(MODELS));
  });

  it.each(Object.keys(MODELS) as ModelName[])('says how %s writes', async (name) => {
    const { renderer, template } = await MODELS[name]();
    const { format, thinks } = responseFormatOf(template);
    const ids = renderer.toolCallIdLength === undefined ? 'any' : `${renderer.toolCallIdLength} characters`;
    const reasoning = thinks === 'unmarked' ? 'none' : '`<think>`';
    expect(documented.find(([model]) => model === name)).toEqual([name, growthOf(renderer), format.name, reasoning, ids]);
    expect(renderer.extends).toBe(growthOf(renderer) === 'always');
    expect(renderer.leftOut).toEqual([]);
  });
});
