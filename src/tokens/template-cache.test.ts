import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Message } from '../core/types.ts';
import { compileJinja } from './jinja.ts';
import { cachedRendering } from './template-cache.ts';

/** A template of messages that is asked through the cache and directly, and how often it was run for the former. */
function asked(source: string) {
  const jinja = compileJinja(source);
  let runs = 0;
  const direct = (messages: readonly Message[]) => ({
    text: jinja({ messages }),
    keepsReasoning: false,
    appends: true,
    restore: (text: string) => text,
  });
  const cached = cachedRendering(
    (messages: readonly Message[], _: null) => {
      runs++;
      return direct(messages);
    },
    source,
    (text) => !text.includes('<|'),
  );
  return {
    runs: () => runs,
    ask: (...messages: Message[]) => {
      const text = cached(messages, null)?.text;
      expect(text).toBe(direct(messages).text);
    },
  };
}

const user = (content: string): Message => ({ role: 'user', content });
const result = (content: string, id: string): Message => ({ role: 'tool', content, tool_call_id: id });
const ALL = '{% for m in messages %}[{{ m.role }}]';

describe('texts in a rendered piece', () => {
  it('are what the template writes, which is run for none of them but the first', () => {
    const { ask, runs } = asked(`${ALL}{{ m.content }};{% endfor %}`);
    ask(user('Hello.'));
    const first = runs();
    ask(user('Something else, with "quotes" and 漢字.'));
    ask(user('x'));
    expect(runs()).toBe(first);
    ask(result('3', 'call_1'), result('4', 'call_2'));
    const second = runs();
    ask(result('5', 'call_3'), result('6', 'call_4'));
    expect(runs()).toBe(second);
  });

  it.each([
    ['white space at an edge', `${ALL}{{ m.content | trim }}{% endfor %}`, ' Hello.', 'Hello.\n', '\u001fHello.'],
    ['what it looks for', `${ALL}{% if '</x>' in m.content %}cut{% else %}{{ m.content }}{% endif %}{% endfor %}`, 'a </x> b'],
    ['how it begins', `${ALL}{% if m.content.startswith('<r>') %}!{% endif %}{{ m.content }}{% endfor %}`, '<r>a'],
    ['where it is cut', `${ALL}{{ m.content.split("--")[0] }}{% endfor %}`, 'a -- b'],
    ['what it names', `{% set cut = '--' %}${ALL}{% if cut in m.content %}!{% endif %}{{ m.content }}{% endfor %}`, 'a -- b'],
    ['its first character', `${ALL}{% if m.content[0] == '[' %}!{% endif %}{{ m.content }}{% endfor %}`, '[1]'],
    ['what it is compared with', `${ALL}{% if m.content == 'stop' %}!{% endif %}{{ m.content }}{% endfor %}`, 'stop'],
    ['nothing at all', `${ALL}{% if m.content %}{{ m.content }}{% else %}none{% endif %}{% endfor %}`, ''],
  ])('are rendered where it may matter: %s', (_, source, ...texts) => {
    const { ask, runs } = asked(source);
    ask(user('Hello.'));
    for (const text of texts) {
      const before = runs();
      ask(user(text));
      expect(runs()).toBe(before + 1);
    }
  });

  it.each([
    ['escapes them', `${ALL}{{ m.content | tojson }}{% endfor %}`],
    ['writes them in capitals', `${ALL}{{ m.content | upper }}{% endfor %}`],
    ['counts them', `${ALL}{{ m.content | length }}{{ m.content }}{% endfor %}`],
    ['writes them twice', `${ALL}{{ m.content }}{{ m.content }}{% endfor %}`],
    ['writes whose result it is', `${ALL}{{ m.tool_call_id }}{{ m.content }}{% endfor %}`],
  ])('are always rendered by a template that %s', (_, source) => {
    const { ask } = asked(source);
    for (const text of ['Hello.', 'Hello, "you".', 'bye']) ask(result(text, `call_${text.length}`));
  });

  it.each([
    ['writes whose result it is', `${ALL}{{ m.tool_call_id }}{{ m.content }}{% endfor %}`],
    ['writes whether it is known', `${ALL}{% if m.tool_call_id %}!{% endif %}{{ m.content }}{% endfor %}`],
    ['counts', `${ALL}{% if m.tool_call_id and m.tool_call_id | length > 6 %}!{% endif %}{{ m.content }}{% endfor %}`],
  ])('are never put into the piece of other results, where a template %s', (_, source) => {
    const ids = [undefined, 'call_1', 'call_22', ''];
    for (const first of ids) {
      const { ask } = asked(source);
      for (const id of [first, ...ids]) ask({ role: 'tool', content: 'ok', ...(id === undefined ? {} : { tool_call_id: id }) });
    }
  });

  it('are what the template writes, whatever they say', () => {
    const source = `${ALL}{% if '<x>' in m.content and m.role == 'user' %}{{ m.content.split('<x>')[-1] | trim }}{% else %}{{ m.content }}{% endif %}{% endfor %}`;
    const { ask } = asked(source);
    const text = fc.oneof(fc.string({ unit: 'grapheme' }), fc.constantFrom('<x>', ' <x> a', 'user', '<|im_end|>', '\n'));
    const message = fc.oneof(
      text.map(user),
      fc.tuple(text, fc.string()).map(([content, id]) => result(content, id)),
    );
    fc.assert(
      fc.property(fc.array(message, { minLength: 1, maxLength: 4 }), (messages) => ask(...messages)),
      { numRuns: 1000 },
    );
  });
});
