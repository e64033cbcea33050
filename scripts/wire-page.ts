/**
 * docs/reference/routes.md as the code has it: routes, parameters, limits, waits and errors of the gateway, of agent flows and of the Tinker server.
 * Names and numbers are the code's; the words about them stand here, one for each name: a name without words, or words without a name, throws.
 */
import { TINKER_LIMITS, WAITS } from '../src/engines/tinker/server/limits.ts';
import { LOSS_NAMES } from '../src/engines/tinker/server/training-model.ts';
import { chatParameters } from '../src/gateway/dialects/chat.ts';
import type { Parameters } from '../src/gateway/dialects/dialect.ts';
import { messagesParameters } from '../src/gateway/dialects/messages.ts';
import { responsesParameters } from '../src/gateway/dialects/responses.ts';
import { DIALECTS } from '../src/gateway/gateway.ts';
import { GATEWAY_LIMITS, REFUSALS, ROUTES, STATUS } from '../src/gateway/wire-protocol.ts';
import { TIMEOUTS } from '../src/http/http-server.ts';
import { FLOW_REFUSALS, FLOW_ROUTES } from '../src/shapes/flows/flow-protocol.ts';

type Words = Readonly<Record<string, string>>;

const ROUTE_WORDS: Words = {
  'POST chat/completions': "one model call in OpenAI's Chat Completions",
  'POST responses': "the same in OpenAI's Responses",
  'POST messages': "the same in Anthropic's Messages",
  'POST messages/count_tokens': 'the length of the prompt; nothing is sampled or recorded',
  'POST generate_tokens': 'a call with `promptIds`, answered with the recorded turn',
  'GET models': "the one model, in Anthropic's shape with `anthropic-version`",
  'GET models/{id}': 'the same, by its name',
  'GET health': '200 while the process answers',
  'GET ready': '200 when model calls can be answered, else 503',
  'GET sessions': 'open sessions: turns, tokens, idle seconds, open calls',
  'POST sessions':
    'opens one: `{ rolloutId?, groupId?, taskId?, purpose?, roles? }` → 201 `{ rolloutId, baseURL, apiKey, roles }`',
  'GET sessions/{rollout}': 'its turns, forks and calls without a response',
  'DELETE sessions/{rollout}': 'seals it, and returns what `GET` would',
};

const GATEWAY_LIMIT_WORDS: Words = {
  bodyBytes: '413, before it is buffered',
  nesting: '400',
  values: '400; items and members of a body',
  messages: '400; per request',
  tools: '400; per request',
  ignored: '400; ignored parameters per request',
  schemaValues: '400; values of a schema that sampling is to follow, within a factor of two',
  headers: '431',
  headerBytes: '431',
  callsAtOnce: '429; per rollout',
  rolloutBytes: '400; all bodies of one rollout',
  openSessions: '429; opened over HTTP',
  wrongKeys: '429; from one address. Valid keys are never counted',
  wrongKeysPerSecond: 'the rate at which that address may go on',
  sampleIdLength: '400; printable ASCII',
};

const TIMEOUT_WORDS: Words = {
  headers: 'until the headers have arrived: 408',
  request: 'until the body has arrived: 408',
  keepAlive: 'between two requests',
  linger: 'for a client that is refused while it sends',
};

const ERROR_WORDS: Words = {
  invalid_request: 'malformed, or asks for something that is refused',
  context_length_exceeded: 'no room for a token. Not to be retried',
  rollout_limit_reached: 'the rollout used up its turns, tokens or bytes. Not to be retried',
  malformed_http: 'neither HTTP/1.1 nor 1.0, a duplicate header, a path that is not plain',
  invalid_api_key: 'the key is missing or wrong',
  forbidden: 'the key is for something else',
  identity_conflict: 'a header names another rollout or role than key or path',
  forbidden_origin: "from a web page, or through a host name that is not loopback's",
  not_found: "no such route, session, model or rollout of this key; also every call of Gemini's API",
  method_not_allowed: 'see `Allow`',
  request_timeout: 'it did not arrive in time',
  idempotency_conflict: 'an `Idempotency-Key` was used for another request',
  rollout_open: 'a session of that rollout is open',
  rollout_ended: 'the rollout is over',
  request_too_large: 'the body is too large',
  unsupported_media_type: 'not plain JSON: compressed, or `text/plain`',
  upgrade_required: 'another protocol was asked for',
  too_many_calls: 'too many calls of the rollout or engine',
  too_many_sessions: 'too many sessions are open',
  too_many_wrong_keys: 'too many wrong keys from this address',
  headers_too_large: 'too many headers, or too long ones',
  default_model_failed: 'the model that plays this role failed',
  engine_failed: 'the engine could not sample',
  internal_error: 'an unexpected failure',
  not_ready: 'the engine is starting or did not start, or the server is stopping',
};

const FLOW_WORDS: Words = {
  generate: 'samples one turn, from messages or token ids',
  submit_steps: 'says which turns are trained and what they earned; `?channel=train` or `val`',
  compute_reward: 'grades a conversation',
  init_trajectory: 'begins a trajectory, or names the one of the key',
  register_trajectory: 'sets channel and metadata',
  complete_trajectory: 'ends it, with or without a reward',
  steps: 'its steps, and what they add up to',
  fetch_batch: 'complete groups for a trainer elsewhere; `admin` only',
  pool: 'what became of the trajectories of each channel; `admin` only',
};

const FLOW_ERROR_WORDS: Words = {
  step_conflict: 'contradicts an earlier step, leaves a gap, uses a generation twice, or names a future version',
  unknown_generation: 'the gateway did not sample it in this trajectory',
  trajectory_complete: 'a step after the end, or another completion',
  trajectory_conflict: 'another prompt or channel than before, or a name that is stored already',
  group_closed: 'the group was handed out or dropped; nothing is stored',
  batch_conflict: 'this `batch_id` was handed out from the other channel',
  lengths_differ: 'not one log-probability for each id',
  grader_failed: 'the grader gave no reward, which is not 0',
  no_grader: 'no grader, or no task to grade by',
  pool_full: 'too many complete groups wait; again after some were fetched',
  store_failed: 'it could not be stored; send it again',
  store_full: 'the disk is full; send it again when there is room',
};

const TINKER_LIMIT_WORDS: Words = {
  bodyBytes: 'bytes of a body, also after decompression',
  jsonBytes: 'bytes of a JSON body',
  smallJsonBytes: 'bytes of one that is neither a pass nor a sample',
  waitingBytes: 'bytes of requests taken and not carried out',
  data: 'datums in one request',
  models: 'models in training',
  samplers: 'sets of weights sampled from at once',
  sequences: 'sequences being sampled, above which requests of busy sessions wait',
  samples: 'sequences of one sample request',
  stops: 'stop ids or texts of one sample request',
  samplesWaiting: 'sample requests not yet answered',
  unnamed: 'unnamed sampler weights of a model',
  resultBytes: 'bytes of results kept',
};

const WAIT_WORDS: Words = {
  poll: '`retrieve_future` waits, then 408: ask again',
  gap: 'a request waits for the `seq_id` before its own',
  turn: 'weights stay loaded while requests for others wait',
  result: 'results are kept',
  session: 'a session without a sign of life ends',
  silence: 'a silent session may lose its models to another',
};

const LOSS_WORDS: Words = {
  cross_entropy: '`target_tokens`, `weights` (1 if absent)',
  importance_sampling: '`target_tokens`, `logprobs`, `advantages`',
  ppo: 'the same; `clip_low_threshold` (0.8), `clip_high_threshold` (1.2) bound the ratio',
  cispo: 'as `ppo`',
  dro: 'as `importance_sampling`; `beta` (0.05)',
};

/** A table of rows `name | … | words`. Every name must have words, and the other way round. */
function table(head: string, names: readonly (readonly string[])[], words: Words): string {
  const unexplained = names.filter(([name = '']) => !Object.hasOwn(words, name));
  const unused = Object.keys(words).filter((name) => !names.some(([first]) => first === name));
  if (unexplained.length + unused.length > 0)
    throw new Error(`${head}: without words: ${unexplained.join(' ')}; words for nothing: ${unused.join(' ')}`);
  const rows = names.map(([name = '', ...cells]) => `| ${[...cells, words[name]].join(' | ')} |`);
  return [`| ${head} |`, `|${'---|'.repeat(head.split(' | ').length)}`, ...rows].join('\n');
}

const code = (text: string): string => `\`${text}\``;
const numbers = (limits: Readonly<Record<string, number>>) =>
  Object.entries(limits).map(([name, value]) => [name, code(name), String(value)]);
const refusals = (statuses: Readonly<Record<string, number>>) =>
  Object.entries(statuses).map(([name, status]) => [name, String(status), code(name)]);

function gatewayErrors(): readonly (readonly string[])[] {
  const shared = Object.values(STATUS).map((row) => [row.code, row.status] as const);
  const statuses = Object.fromEntries([...Object.entries(REFUSALS), ...shared]);
  return refusals(statuses).toSorted(([, a = ''], [, b = '']) => Number(a) - Number(b));
}

const PARAMETERS: Readonly<Record<string, Parameters>> = {
  'chat/completions': chatParameters,
  responses: responsesParameters,
  messages: messagesParameters,
};

function parameterLists(): string {
  const sections = Object.keys(DIALECTS).map((path) => {
    const { honoured, ignored, refused } = PARAMETERS[path]!;
    const line = (list: string, names: readonly string[]): string => `- ${list}: ${names.toSorted().map(code).join(', ')}`;
    return [`### ${code(path)}`, '', line('honoured', honoured), line('ignored', ignored), line('refused', Object.keys(refused))];
  });
  return sections.map((lines) => lines.join('\n')).join('\n\n');
}

export function wirePage(): string {
  const routes = ROUTES.map(({ method, path, who }) => {
    const plain = path.replace('+}', '}');
    return [`${method} ${plain}`, method, code(plain), who.join(', ') || 'anyone'];
  });
  const flowRoutes = FLOW_ROUTES.map(({ method, path }) => [path.split('/').at(-1) ?? '', method, code(path)]);
  return `# Routes, limits and errors

Printed from the code by \`npm run build:docs\`; a test keeps it so. What the words mean stands on the pages of [the gateway](gateway.md),
[agent flows](agent-flow.md) and [Tinker](tinker.md).

## The gateway

Model routes (up to \`models/{id}\`) are served below \`/\`, \`/v1\` and both below \`/r/<rollout>\`; a second \`/v1\` is accepted, the query ignored.

${table('method | path | who | what', routes, ROUTE_WORDS)}

Keys: \`Authorization: Bearer\`, \`x-api-key\` or \`x-goog-api-key\`. Sessions can be opened over HTTP if the gateway has \`sessionDefaults\`; they end at their
deadline or after an hour without use.

## Parameters

Names in no list are ignored. Refused ones pass with a value that changes nothing.

${parameterLists()}

## Limits

Bodies are JSON in UTF-8. Sizes are in bytes, times in milliseconds.

${table('limit | value | beyond it', numbers(GATEWAY_LIMITS), GATEWAY_LIMIT_WORDS)}

${table('timeout | ms | what', numbers({ ...TIMEOUTS }), TIMEOUT_WORDS)}

## Errors

\`{ "error": { "message", "type", "param", "code", "hint" } }\`, on Anthropic's routes \`{ "type": "error", "error": { … } }\`. Nothing is recorded for a failed
call. Stock clients retry 408, 409, 429 and 5xx; \`x-should-retry: false\` says where that does not help.

${table('status | code | when', gatewayErrors(), ERROR_WORDS)}

## Agent flows

${table('method | path | what', flowRoutes, FLOW_WORDS)}

${table('status | code | when', refusals(FLOW_REFUSALS), FLOW_ERROR_WORDS)}

## Tinker server

${table(
  '`loss_fn` | inputs and `loss_fn_config`',
  LOSS_NAMES.map((name) => [name, code(name)]),
  LOSS_WORDS,
)}

${table('limit | value | of', numbers(TINKER_LIMITS), TINKER_LIMIT_WORDS)}

${table('wait | ms | what', numbers(WAITS), WAIT_WORDS)}
`;
}
