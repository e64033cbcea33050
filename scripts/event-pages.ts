/**
 * docs/reference/events.md and events.schema.json, made from the types of src/core/events.ts and the comments on them. Knows the few forms of types
 * that events use; another one throws, so that nothing is left out silently.
 */
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { type ESTree, parseSync } from 'vite';

type Schema = Readonly<Record<string, unknown>>;

interface Field {
  readonly name: string;
  readonly type: ESTree.TSType;
  readonly isOptional: boolean;
  readonly meaning: string;
}

interface Declared {
  readonly node: ESTree.TSInterfaceDeclaration | ESTree.TSTypeAliasDeclaration;
  readonly meaning: string;
  readonly source: Parsed;
}

type Parsed = ReturnType<typeof parsed>;

function parsed(path: string) {
  const text = readFileSync(fileURLToPath(new URL(`../src/core/${path}`, import.meta.url)), 'utf8');
  const { program, comments } = parseSync(path, text);
  return { text, program, comments };
}

/** The comment that ends right before this place. */
function meaningAt({ text, comments }: Parsed, start: number): string {
  const before = comments.find(({ end }) => end <= start && text.slice(end, start).trim() === '');
  return (before?.value ?? '')
    .replaceAll(/^\*|\n\s*\*/g, ' ')
    .replaceAll(/\s+/g, ' ')
    .trim();
}

const declarations = new Map<string, Declared>();
for (const source of ['events.ts', 'policy.ts'].map(parsed)) {
  for (const statement of source.program.body) {
    const node = statement.type === 'ExportNamedDeclaration' ? statement.declaration : statement;
    if (node?.type !== 'TSInterfaceDeclaration' && node?.type !== 'TSTypeAliasDeclaration') continue;
    declarations.set(node.id.name, { node, source, meaning: meaningAt(source, statement.start) });
  }
}

function declared(name: string): Declared {
  const one = declarations.get(name);
  if (one === undefined) throw new Error(`events.ts uses ${name}, which is declared neither there nor in policy.ts`);
  return one;
}

/** Of an interface and of those that it extends. */
function fieldsOf(name: string): readonly Field[] {
  const { node, source } = declared(name);
  if (node.type !== 'TSInterfaceDeclaration') throw new Error(`${name} is no interface`);
  const inherited = node.extends.flatMap(({ expression }) => (expression.type === 'Identifier' ? fieldsOf(expression.name) : []));
  const own = membersOf(node.body.body, source);
  return [...own, ...inherited.filter((field) => !own.some(({ name: same }) => same === field.name))];
}

function membersOf(members: readonly ESTree.TSSignature[], source: Parsed): readonly Field[] {
  return members.map((member) => {
    if (member.type !== 'TSPropertySignature' || member.key.type !== 'Identifier' || !member.typeAnnotation)
      throw new Error(`a member of an event is no property: ${source.text.slice(member.start, member.end)}`);
    const { name } = member.key;
    const meaning = meaningAt(source, member.start);
    return { name, meaning, isOptional: member.optional, type: member.typeAnnotation.typeAnnotation };
  });
}

const nested = new Map<string, Schema>();

function objectOf(fields: readonly Field[], source: Parsed, more: Schema = {}): Schema {
  const properties = Object.fromEntries(fields.map(({ name, type }) => [name, schemaOf(type, source)]));
  const required = fields.filter(({ isOptional }) => !isOptional).map(({ name }) => name);
  return { type: 'object', ...more, properties, required, additionalProperties: false };
}

function schemaOf(type: ESTree.TSType, source: Parsed): Schema {
  switch (type.type) {
    case 'TSStringKeyword':
      return { type: 'string' };
    case 'TSNumberKeyword':
      return { type: 'number' };
    case 'TSNullKeyword':
      return { type: 'null' };
    case 'TSLiteralType':
      return { const: (type.literal as ESTree.StringLiteral).value };
    case 'TSTypeOperator':
      return schemaOf(type.typeAnnotation, source);
    case 'TSArrayType':
      return { type: 'array', items: schemaOf(type.elementType, source) };
    case 'TSTupleType':
      return { type: 'array', items: { type: 'number' }, minItems: type.elementTypes.length, maxItems: type.elementTypes.length };
    case 'TSTypeLiteral':
      return objectOf(membersOf(type.members, source), source);
    case 'TSUnionType': {
      const all = type.types.map((one) => schemaOf(one, source));
      return all.every((one) => 'const' in one) ? { enum: all.map((one) => one['const']) } : { anyOf: all };
    }
    case 'TSTypeReference':
      return referenceOf(type, source);
    default:
      throw new Error(`an event has a type that is not known here: ${source.text.slice(type.start, type.end)}`);
  }
}

function referenceOf(type: ESTree.TSTypeReference, source: Parsed): Schema {
  const name = source.text.slice(type.typeName.start, type.typeName.end);
  const args = type.typeArguments?.params ?? [];
  if (name === 'Readonly') return schemaOf(args[0]!, source);
  if (name === 'Record') return { type: 'object', additionalProperties: schemaOf(args[1]!, source) };
  if (name === 'Count') return { type: 'integer' };
  const { node, meaning, source: own } = declared(name);
  if (!nested.has(name)) {
    nested.set(name, {});
    const schema = node.type === 'TSInterfaceDeclaration' ? objectOf(fieldsOf(name), own) : schemaOf(node.typeAnnotation, own);
    nested.set(name, { ...(meaning === '' ? {} : { description: meaning }), ...schema });
  }
  return { $ref: `#/$defs/${name}` };
}

interface EventType {
  readonly title: string;
  readonly name: string;
  readonly meaning: string;
  readonly fields: readonly Field[];
}

/** The events that are written, in the order of `RunEvent`. */
function eventTypes(): readonly EventType[] {
  const { node, source } = declared('RunEvent');
  if (node.type !== 'TSTypeAliasDeclaration' || node.typeAnnotation.type !== 'TSUnionType')
    throw new Error('RunEvent is no union');
  const titles = new Map([
    ['TrainDone', 'done (training)'],
    ['EvalDone', 'done (evaluation)'],
  ]);
  return node.typeAnnotation.types.flatMap((one) => {
    const name = source.text.slice(one.start, one.end);
    const fields = fieldsOf(name);
    const { const: type } = schemaOf(fields.find((field) => field.name === 'type')!.type, source) as { const: string };
    const { meaning } = declared(name);
    return type === 'progress' ? [] : [{ name, meaning, fields, title: titles.get(name) ?? type }];
  });
}

export function eventsSchema(): string {
  const anyOf = eventTypes().map(({ title, name, meaning, fields }) => {
    const { source } = declared(name);
    const { properties, required } = objectOf(fields, source) as { properties: object; required: readonly string[] };
    const at = { type: 'integer', description: 'milliseconds since the epoch' };
    return {
      title,
      description: meaning,
      type: 'object',
      properties: { ...properties, at },
      required: [...required, 'at'],
      additionalProperties: false,
    };
  });
  const schema = {
    $schema: 'https://json-schema.org/draft/2020-12/schema',
    title: "A line of a Trainyard run's events.jsonl, or of --json of train, sft and eval",
    anyOf,
    $defs: Object.fromEntries(nested),
  };
  return `${JSON.stringify(schema, null, 1)}\n`;
}

const PAGE = `<!-- Generated from the code: npm run build:docs -->
# Events

A run reports what happens as events: one JSON object a line, in \`events.jsonl\` of its directory and, with \`--json\`, on stdout of \`trainyard train\`,
\`sft\` and \`eval\`. From TypeScript, the second argument of \`train\` receives the same objects. [events.schema.json](events.schema.json) describes them as
JSON Schema (draft 2020-12); a test validates the events of real runs against it.

Every line has \`type\`, and \`at\`, the time in milliseconds since 1970 (UTC). Shares and probabilities are between 0 and 1, times are in seconds. Fields
with ? are absent where they do not apply. A number that cannot be computed, such as the reward of a step without graded rollouts, is \`null\`.

The order: \`run-start\`; \`eval-end\` before training; for every step \`step-end\`, and \`eval-end\` when an evaluation is due; \`eval-end\` after training;
\`done\`. An evaluation is \`eval-start\`, \`eval-end\`, \`done\`. Fine-tuning is \`sft-start\`, \`sft-step\` …, \`sft-end\`, and comes first in a training with
\`--warm-start\`. \`warning\` and \`transcript\` can come at any time; \`error\` is the last line of what failed. A resumed run appends to the same file.
TypeScript receives one more, \`progress\`, several times a second; it is written nowhere.

To see rewards as they come: \`tail -f runs/<name>/events.jsonl | jq 'select(.type == "step-end") | [.step, .reward, .rewardCi]'\`.
`;

/** How a reader calls a type. */
function wordFor(schema: Schema): string {
  const { $ref, type, anyOf, enum: values, const: value } = schema as Schema & { readonly anyOf?: readonly Schema[] };
  if (typeof $ref === 'string') {
    const name = $ref.slice('#/$defs/'.length);
    const inner = nested.get(name)!;
    return name === 'Interval'
      ? 'interval'
      : inner['type'] === 'object' && inner['properties'] !== undefined
        ? `[${name}](#${name.toLowerCase()})`
        : wordFor(inner);
  }
  if (anyOf !== undefined) return anyOf.map(wordFor).join(' or ');
  if (Array.isArray(values)) return values.map((one) => `\`${one}\``).join(', ');
  if (value !== undefined) return `\`${value}\``;
  if (type === 'array') return 'list of strings';
  return String(type);
}

function tableOf(fields: readonly Field[], source: Parsed): string {
  const rows = fields
    .filter(({ name }) => name !== 'type')
    .map(
      ({ name, type, isOptional, meaning }) =>
        `| \`${name}${isOptional ? '?' : ''}\` | ${wordFor(schemaOf(type, source))} | ${meaning} |`,
    );
  return `| field | type | meaning |\n|---|---|---|\n${rows.join('\n')}\n`;
}

export function eventsPage(): string {
  const sections = eventTypes().map(
    ({ title, name, meaning, fields }) => `\n## ${title}\n\n${meaning}\n\n${tableOf(fields, declared(name).source)}`,
  );
  const objects = [...nested.keys()].filter((name) => declared(name).node.type === 'TSInterfaceDeclaration');
  const parts = objects.map(
    (name) => `\n### ${name}\n\n${declared(name).meaning}\n\n${tableOf(fieldsOf(name), declared(name).source)}`,
  );
  return `${PAGE}${sections.join('')}\n## Objects in them\n${parts.join('')}`;
}
