/**
 * Structured output: the model must call one tool, whose arguments are the result. The tokens around the arguments are part of the prompt,
 * neither sampled nor trained. Asks once. A result that does not fit the schema is returned, not thrown, and never retried implicitly: a
 * retry is a turn of its own, and a rollout that throws is not trained, so the policy could not learn from it.
 */
import { z } from 'zod';
import type { GenerateRequest, Generation, ModelHandle } from '../../core/contracts.ts';
import { TrainyardError } from '../../core/errors.ts';
import type { Json, Message, Tool } from '../../core/types.ts';

/** Standard Schema, which Zod implements from version 4 on. */
interface Validating<T> {
  readonly '~standard': {
    readonly validate: (value: unknown) => Validated<T> | Promise<Validated<T>>;
  };
}
type Validated<T> =
  | { readonly value: T; readonly issues?: undefined }
  | { readonly issues: readonly { readonly message: string; readonly path?: readonly unknown[] | undefined }[] };

export type StructuredModel<T> = Validating<T> | { readonly type: 'object'; readonly [keyword: string]: unknown };

export interface StructuredRequest<T> extends Pick<GenerateRequest, 'temperature' | 'topP' | 'topK' | 'maxTokens' | 'signal'> {
  readonly messages: readonly Message[];
  readonly structuredModel: StructuredModel<T>;
  /** Name of the tool. Default `generate_response`. */
  readonly name?: string;
  readonly description?: string;
  /** The tools that the conversation has shown so far. Its prompt can only be extended if they stay the same. */
  readonly tools?: readonly Tool[];
}

export interface Structured<T> {
  /** Undefined if the result does not fit; `problem` then says why. */
  readonly object: T | undefined;
  readonly problem: string | undefined;
  readonly generation: Generation;
}

const NAME = 'generate_response';

export async function generateStructured<T>(model: ModelHandle, request: StructuredRequest<T>): Promise<Structured<T>> {
  const { structuredModel, name = NAME, description = 'give the final answer', tools = [], messages, ...settings } = request;
  const { parameters, validate } = schemaOf(structuredModel);
  const tool: Tool = { type: 'function', function: { name, description, parameters } };
  const generation = await model.generate({ ...settings, messages, tools: [...tools, tool], tool: name });
  const call = generation.toolCalls.find((one) => one.function.name === name);
  if (call === undefined) {
    return { object: undefined, problem: `expected a call of ${name}, found ${JSON.stringify(generation.text)}`, generation };
  }
  return { ...(await fitted(call.function.arguments, validate)), generation };
}

async function fitted<T>(text: string, validate: Validate<T>): Promise<Pick<Structured<T>, 'object' | 'problem'>> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return { object: undefined, problem: `expected JSON, found ${JSON.stringify(text.slice(0, 200))}` };
  }
  const validated = await validate(value);
  if (validated.issues === undefined) return { object: validated.value, problem: undefined };
  const problem = validated.issues
    .map(({ message, path = [] }) => `${path.map(String).join('.') || 'answer'}: ${message}`)
    .join('; ');
  return { object: undefined, problem };
}

type Validate<T> = (value: unknown) => Validated<T> | Promise<Validated<T>>;

function schemaOf<T>(given: StructuredModel<T>): { readonly parameters: Json; readonly validate: Validate<T> } {
  try {
    if ('~standard' in given && typeof given['~standard'] === 'object') {
      const { validate } = (given as Validating<T>)['~standard'];
      return { parameters: z.toJSONSchema(given as never, { io: 'input' }) as Json, validate };
    }
    const schema = z.fromJSONSchema(given as never);
    return { parameters: given as unknown as Json, validate: (value) => schema['~standard'].validate(value) as Validated<T> };
  } catch (cause) {
    const found = cause instanceof Error ? cause.message : String(cause);
    throw new TrainyardError('REQUEST_INVALID', `structuredModel cannot be used as a schema: ${found}`, {
      hint: 'give a Zod schema (version 4) or a JSON schema with type "object"',
      cause,
    });
  }
}
