/**
 * Opens the policy that a run samples and trains: in this process (`embedded`), or on a Tinker API server (`tinker`), for which the local
 * folder provides only tokenizer and chat template. The rest of the run cannot tell them apart. A policy behind an API needs no folder; it
 * is measured by its messages, and not trained.
 */
import { hash } from 'node:crypto';
import { z } from 'zod';
import type { Downtime } from '../core/async.ts';
import type { Grader, GraderInput, GraderModel, GraderRunner, ModelServer, SessionHost, SessionSpec } from '../core/contracts.ts';
import { printableLine } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import { defined, parsedJson } from '../core/json.ts';
import type { Engine, ModelPlan, Trainer } from '../core/policy.ts';
import type { Grade, Limits, SamplingSettings, Turn } from '../core/types.ts';
import { bodyOf } from '../gateway/model-server.ts';
import type { ServedPolicy, TokenPolicy } from '../gateway/sampling.ts';
import { baseURLOf, type EvaluationSettings, type RunSettings, type TrainSettings } from '../settings/check-settings.ts';
import { APIS, type ApiName, isApi } from '../settings/settings.ts';
import { loadRenderer } from '../tokens/renderer.ts';
import { checkModelFolder } from './checkpoint.ts';
import { EmbeddedModel } from './embedded/embedded-model.ts';
import { LORA_TARGETS, type LoraSettings } from './embedded/lora.ts';
import { readAdapterConfig } from './embedded/model/model-files.ts';
import type { KernelVariant } from './embedded/wasm.ts';
import { HUB_NAME, hubNameOf, resolveModel } from './model-path.ts';

export interface Policy extends AsyncDisposable {
  readonly name: string;
  /** Address of the server. Undefined for the embedded policy. */
  readonly server?: string;
  /** Of the embedded policy. */
  readonly plan?: ModelPlan;
  readonly engine: Engine;
  readonly trainer: Trainer;
}

export interface PolicyOptions {
  readonly warn: Warn;
  readonly stop: AbortSignal;
  readonly downtime?: Downtime | undefined;
  /** Default: the fastest that the machine supports. */
  readonly kernels?: KernelVariant | undefined;
  /** An embedded policy that is only sampled needs far less memory. Default: training. */
  readonly use?: 'sampling' | 'training' | undefined;
}

export type PolicySettings = Pick<RunSettings, 'engine' | 'model' | 'threads' | 'seed' | 'baseModel' | 'baseURL'> &
  Partial<
    Pick<TrainSettings, 'apiKeyEnv' | 'trained' | 'loraRank' | 'loraAlpha' | 'context' | 'callTokens' | 'staleness' | 'workers'>
  >;

type ServerSettings = Pick<PolicySettings, 'engine' | 'model' | 'baseURL' | 'apiKeyEnv'>;

/** A policy for a gateway. */
export interface SampledPolicy extends AsyncDisposable {
  readonly name: string;
  readonly server?: string;
  readonly plan?: ModelPlan;
  readonly sampled: TokenPolicy | (ServedPolicy & { readonly model: ModelServer });
  /** Absent if the policy is behind an API. */
  readonly trainer?: Trainer;
}

type SampledSettings = PolicySettings & Partial<Pick<EvaluationSettings, 'temperature' | 'agentTemperature'>>;

export async function openSampled(settings: SampledSettings, options: PolicyOptions): Promise<SampledPolicy> {
  const { engine, model: dir, temperature, agentTemperature } = settings;
  const model = serverOf(settings);
  if (model !== undefined) {
    const sampled = { model, temperature: agentTemperature ? undefined : temperature };
    return { name: policyName(settings), server: model.baseURL, sampled, [Symbol.asyncDispose]: async () => {} };
  }
  await checkModelFolder(dir, engine === 'tinker' ? 'text' : 'weights');
  const renderer = await loadRenderer(dir);
  if (renderer.leftOut.length > 0) options.warn('TEMPLATE_WITHOUT_TOOLS', leftOutOf(dir, renderer.leftOut));
  const policy = await openPolicy(settings, renderer.vocabSize, options);
  const { name, server, plan, trainer } = policy;
  const sampled = { engine: policy.engine, renderer };
  return { name, ...defined({ server, plan }), sampled, trainer, [Symbol.asyncDispose]: () => policy[Symbol.asyncDispose]() };
}

function leftOutOf(model: string, leftOut: readonly string[]): string {
  const found = `the chat template of ${model} leaves out ${leftOut.join(' and ')}`;
  const instead = 'where the workflow uses tools, they are written in a form of Trainyard’s own, which this model may not know';
  return `${found}; ${instead} (trainyard help gateway)`;
}

/** For people: the folder of the model, or its name and server. */
export function policyName({ engine, model, baseURL }: Omit<ServerSettings, 'apiKeyEnv'>): string {
  return isApi(engine) && baseURL !== undefined ? `${model} at ${new URL(baseURL).host}` : model;
}

/** Undefined unless the policy is behind an API. Asks the server nothing. */
function serverOf({ engine: api, model: name, baseURL, apiKeyEnv }: ServerSettings): ModelServer | undefined {
  return isApi(api) && baseURL !== undefined ? { name, baseURL, apiKey: keyOf(api, apiKeyEnv), api } : undefined;
}

/** Empty if no variable was named and the usual one is not set: servers of one's own often need none. */
function keyOf(api: ApiName, named: string | undefined): string {
  const key = process.env[named ?? APIS[api].keyEnv] ?? '';
  if (key !== '' || named === undefined) return key;
  throw new TrainyardError(
    'USAGE',
    `apiKeyEnv: expected the name of an environment variable with the key, and ${named} is not set`,
    `export ${named}=…, or leave --api-key-env out for a server that needs no key`,
  );
}

const MOST_NAMED = 20;
const LIST_MS = 5_000;

/** Throws USAGE, with the server's own list if it gives one, unless a model behind an API was named. Spends nothing. */
export async function checkModelNamed(request: Partial<ServerSettings>): Promise<void> {
  const { engine = 'embedded', model, apiKeyEnv } = request;
  if (!isApi(engine) || model !== undefined) return;
  const baseURL = baseURLOf(engine, request);
  const offered = baseURL === undefined ? [] : await modelsAt(baseURL, engine, keyOf(engine, apiKeyEnv));
  const more = offered && offered.length > MOST_NAMED ? ` and ${offered.length - MOST_NAMED} more` : '';
  const host = baseURL && new URL(baseURL).host;
  const names = offered?.slice(0, MOST_NAMED).join(', ');
  const list = offered === undefined ? `; ${host} cannot be reached` : names ? `; ${host} offers ${names}${more}` : '';
  throw new TrainyardError(
    'USAGE',
    `model: expected the name of a model at the server, found none${list}`,
    `give --model its name there, such as --model ${offered?.[0] ?? 'NAME'}`,
  );
}

/** Undefined if the server cannot be reached, empty if it gives no list. */
export async function modelsAt(baseURL: string, api: ApiName, key: string): Promise<readonly string[] | undefined> {
  const base = baseURL.replace(/\/+$/, '');
  const url = api === 'anthropic' ? `${base.replace(/\/v1$/, '')}/v1/models` : `${base}/models`;
  const anthropic = { 'anthropic-version': '2023-06-01', 'x-api-key': key };
  const headers = key === '' ? {} : api === 'anthropic' ? anthropic : { authorization: `Bearer ${key}` };
  const response = await fetch(url, { headers, redirect: 'manual', signal: AbortSignal.timeout(LIST_MS) }).catch(() => undefined);
  const found = modelsSchema.safeParse(response && parsedJson((await bodyOf(response).catch(() => '')) ?? ''));
  if (response === undefined) return undefined;
  return found.success ? found.data.data.map(({ id }) => printableLine(id)) : [];
}
const modelsSchema = z.object({ data: z.array(z.object({ id: z.string().max(200) })) });

/** Serves the weights of `settings.model` as version 0. `words`: size of the folder's tokenizer. */
export async function openPolicy(settings: PolicySettings, words: number, options: PolicyOptions): Promise<Policy> {
  if (settings.engine === 'tinker') {
    const { openTinkerPolicy } = await import('./tinker/client/tinker-policy.ts');
    return await openTinkerPolicy(settings, words, options);
  }
  const { model: dir, threads, context, seed, staleness = 0 } = settings;
  const { trained, loraRank, loraAlpha } = settings;
  if (trained === 'all' && (await readAdapterConfig(dir))) {
    throw new TrainyardError(
      'USAGE',
      `trained: expected adapters, found all: ${dir} is an adapter, and goes on as one`,
      'leave --trained out; to train all parameters, export the model with --merged first, and start from that',
    );
  }
  const isAsked = (loraRank ?? loraAlpha) !== undefined;
  const lora = isAsked ? loraOf(settings, Infinity) : (parameters: number) => loraOf(settings, parameters);
  const { use, kernels: variant } = options;
  const findBase = (name: string) => baseOf(dir, name);
  // Without staleness no rollout runs while weights are published.
  const overlap = staleness > 0;
  const model = await EmbeddedModel.open({ dir, findBase, threads, context, seed, lora, use, variant, overlap });
  try {
    checkVocabulary(words, model.vocabSize);
  } catch (thrown) {
    await model.close();
    throw thrown;
  }
  return { name: dir, plan: model.plan, engine: model, trainer: model, [Symbol.asyncDispose]: () => model.close() };
}

/** Throws FILE_NOT_FOUND unless the base of this adapter is here. */
async function baseOf(adapter: string, name: string): Promise<string> {
  return await resolveModel(name).catch((thrown: unknown) => {
    if (!(thrown instanceof TrainyardError)) throw thrown;
    const isAtHub = HUB_NAME.test(name) || hubNameOf(name) !== undefined;
    const put = 'put the base model back, or write where it is into base_model_name_or_path of adapter_config.json';
    const hint = (isAtHub ? thrown.hint : undefined) ?? put;
    throw new TrainyardError(thrown.code, `${adapter} is an adapter, and its base model is missing: ${thrown.message}`, hint);
  });
}

/** Below this, all parameters are trained unless adapters are asked for. */
const SMALL_MODEL = 20_000_000;
const RANK = 16;

function loraOf({ trained, loraRank: rank = RANK, loraAlpha }: PolicySettings, parameters: number): LoraSettings | undefined {
  const isAdapted = trained === 'adapters' || (trained === undefined && parameters >= SMALL_MODEL);
  return isAdapted ? { rank, alpha: loraAlpha ?? 2 * rank, targets: LORA_TARGETS } : undefined;
}

/** For the start of a run: the memory of a small model is worth no line. */
export function planToTell({ plan }: Pick<SampledPolicy, 'plan'>): ModelPlan | undefined {
  return plan !== undefined && plan.parameters > SMALL_MODEL ? plan : undefined;
}

export function checkVocabulary(words: number, vocabSize: number): void {
  if (words <= vocabSize) return;
  throw new TrainyardError(
    'MODEL_INVALID',
    `the tokenizer has ${words} tokens, the model ${vocabSize}`,
    'tokenizer.json and config.json must be of the same model',
  );
}

/** For one grading that asks the policy. */
const JUDGE_LIMITS: Limits = { turns: 64, tokens: 65_536, deadlineMs: 3_600_000 };
const JUDGE_SAMPLING: SamplingSettings = { temperature: 0, topP: 1, topK: 0, maxTokens: 4_096 };
const JUDGE = 'judge';

export interface PolicyJudgeParts {
  readonly sessions: SessionHost;
  readonly seed: number;
  readonly signal: AbortSignal;
}

/**
 * Lets graders with `asksPolicy` use the run's policy as a judge, through a gateway session per grading; other graders are returned
 * unchanged. The judge's responses are not rollouts: they are neither stored nor trained, and do not count as sampled. Weights may change
 * during a grading, so the reward's metrics record the last policy version that judged and how many did.
 */
export function withPolicy(runner: GraderRunner, grader: Grader, parts: PolicyJudgeParts): GraderRunner {
  if (!grader.asksPolicy) return runner;
  const open = new Set<string>();
  const grade: GraderRunner['grade'] = async (input, _, print) => {
    const name = freeName(input, open);
    open.add(name);
    const session = parts.sessions.open(judgeSession(name, input, parts));
    try {
      const { baseURL, apiKey, name: model } = session.model(JUDGE);
      const asked: GraderModel = { baseURL, apiKey, name: model };
      return withVersions(await runner.grade(input, asked, print), session.turns);
    } finally {
      session.seal();
      open.delete(name);
    }
  };
  return { grade, [Symbol.asyncDispose]: () => runner[Symbol.asyncDispose]() };
}

/** Derived from the graded content, not from time: seeds depend on it, and judging the same rollout again must use the same seeds. */
function freeName({ task, messages, output = null }: GraderInput, open: ReadonlySet<string>): string {
  const digest = hash('sha256', JSON.stringify([task.id, messages, output]), 'hex').slice(0, 24);
  let number = 1;
  while (open.has(`${JUDGE}-${digest}-${number}`)) number++;
  return `${JUDGE}-${digest}-${number}`;
}

function judgeSession(name: string, { task }: GraderInput, { seed, signal }: PolicyJudgeParts): SessionSpec {
  return {
    identity: { rolloutId: name, groupId: name, taskId: task.id, purpose: 'eval' },
    roles: { [JUDGE]: { trainable: false } },
    othersTrainable: false,
    sampling: JUDGE_SAMPLING,
    limits: JUDGE_LIMITS,
    seed,
    signal,
  };
}

function withVersions(grade: Grade, turns: readonly Turn[]): Grade {
  if (grade.kind !== 'graded' || turns.length === 0) return grade;
  const versions = new Set(turns.map((turn) => turn.policyVersion));
  const metrics = { ...grade.reward.metrics, 'judge.version': turns.at(-1)!.policyVersion, 'judge.versions': versions.size };
  return { kind: 'graded', reward: { ...grade.reward, metrics } };
}
