/**
 * Settings of a run: their schema, defaults and conflicts, and how they derive from a request. Finds task files beside the entry, and
 * reports all problems at once before anything is opened or spent. docs/reference/settings.md explains each setting.
 */

import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { z } from 'zod';
import { TrainyardError } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import type { Entry } from '../rollout/discovery.ts';
import { isDatabaseUrl, STORE_URL } from '../store/open.ts';
import type { TaskSource } from '../tasks/rows.ts';
import { tidyRows } from './row-ranges.ts';
import {
  ALGORITHMS,
  API_DEFAULTS,
  APIS,
  type ApiName,
  BASE_MODEL,
  ENGINES,
  EVAL_DEFAULTS,
  freeRun,
  IS_ACTIONS,
  IS_LEVELS,
  isApi,
  KL_ESTIMATORS,
  LOSS_NAMES,
  SFT_DEFAULTS,
  STALE_NAMES,
  shellWord,
  TINKER_CONCURRENCY,
  TRAIN_DEFAULTS,
  usualHeldOut,
  usualRun,
  usualTasks,
  WEIGHTINGS,
} from './settings.ts';

const count = z.int().min(1).max(1_000_000);
const natural = z.int().min(0).max(Number.MAX_SAFE_INTEGER);
const share = z.number().min(0).max(1);
const SOME_SHARE = 'expected a share between 0 and 1, such as 0.1, so that both sides have tasks';
const positive = z.number().gt(0);
/** Longer timers fire at once. */
const milliseconds = z
  .int()
  .min(1)
  .max(2 ** 31 - 1);
const file = z.string().min(1);
const workers = z.int().min(1).max(256);
const tasks = z.custom<TaskSource>(
  (value) => (typeof value === 'string' ? value !== '' : isIterable(value)),
  'expected a path, or a list or iterable of rows',
);
const isEntry = (value: unknown): boolean => typeof value === 'object' && value !== null && 'workflow' in value;

const runShape = {
  /** Path of a module that exports workflow and grader, or the two as values (the grader then cannot be killed). */
  entry: z.union([file, z.custom<Entry>(isEntry)]),
  /** Name of the flow to use as workflow. The entry may then hold only the grader, or be the flows file. */
  flow: file.optional(),
  flows: file.optional(),
  /** Where the policy is: in this process, on a Tinker API server, or behind an API, where it is measured but never trained. */
  engine: z.enum(ENGINES),
  /** Model folder: config.json, tokenizer.json, tokenizer_config.json and, if embedded, model.safetensors. Behind an API: its name there. */
  model: file,
  /** The server's name for the model. Default: that of the checkpoint, or the server's only model. */
  baseModel: file.optional(),
  /** Address of the server. Default: TINKER_BASE_URL, or that of the API. */
  baseURL: z.url({ protocol: /^https?$/ }).optional(),
  /** Environment variable that holds the key of an API. The key itself is kept nowhere. */
  apiKeyEnv: file.optional(),
  /** What the embedded engine trains. Default: all parameters of a model below 20 million, adapters of a larger one. */
  trained: z.enum(['all', 'adapters']).optional(),
  /** Rank of the adapters. Default: 32 at a Tinker server, 16 embedded. */
  loraRank: z.int().min(1).max(1024).optional(),
  /** Adapters count alpha / rank times. Default: twice the rank. Embedded only. */
  loraAlpha: z.number().positive().max(4096).optional(),
  /** The most tokens of a prompt and its answer, below what the model was made for. Embedded only: its memory grows with it. */
  context: count.optional(),
  seed: natural,
  /** Rollouts in parallel. */
  concurrency: count,
  threads: workers,
  limits: z.strictObject({ turns: count, tokens: count, deadlineMs: milliseconds }),
  /** Maximum tokens per model call. */
  callTokens: count,
  /** Overrides what the entry says: 'process' runs each rollout in a process of its own. */
  isolation: z.enum(['none', 'process']).optional(),
  /** Processes for workflows with isolation 'process', and so their rollouts in parallel. */
  workflowWorkers: workers,
  graderWorkers: workers,
  graderDeadlineMs: milliseconds,
  /** Retries of a failed grading, unless the grader defines its own. */
  graderRetries: z.int().min(0).max(100),
  /** Per grading process, including its children. */
  graderMemoryMb: z.int().min(64).max(1_048_576),
  /** Held-out conversations to show. */
  transcripts: natural,
  /** Roles to train. Default: as declared by the workflow. In an evaluation: the roles that the policy plays. */
  trainable: z.array(file).min(1).readonly().optional(),
  /** For prompt and sampled tokens, per million of them: estimates and reports then include costs. */
  price: z
    .tuple([z.number().min(0), z.number().min(0)])
    .readonly()
    .optional(),
  /** Share of gradings that may fail before the run ends. Judged from 64 gradings on. */
  maxErrorShare: share,
  /** PostgreSQL database to keep rollouts in, instead of a file in the run's directory. Its password is kept nowhere. */
  store: z.string().refine(isDatabaseUrl, STORE_URL).optional(),
  /** `external`: rollouts run on `trainyard worker`s that share the store. Default: in this process. */
  workers: z.literal('external').optional(),
};

const evaluationShape = {
  heldOut: tasks,
  /** Directory to keep it in. Without one, nothing is kept and it cannot be resumed. */
  run: file.optional(),
  n: count,
  temperature: z.number().min(0).max(2),
  /** Behind an API: the temperature that the agent asks for wins. Default: unless `temperature` is given. */
  agentTemperature: z.literal(true).optional(),
  /** Rows of the task file, such as 3,7,10-20. Default: all. */
  rows: z.string().optional(),
};

const trainShape = {
  run: file,
  tasks,
  minTasks: count,
  /** Without these and without `split`, nothing is evaluated. */
  heldOut: tasks.optional(),
  /** Share of `tasks` to hold out, as an alternative to `heldOut`. */
  split: z.number().gt(0, SOME_SHARE).lt(1, SOME_SHARE).optional(),
  steps: count,
  group: count.min(2, 'expected at least 2: a rollout is compared with the others of its group'),
  /** Groups with signal per step. */
  groupsPerStep: count,
  /** A step stops collecting groups after `refill` × `groupsPerStep`. */
  refill: count,
  /** Policy versions allowed between sampling and training: 0 is synchronous; more lets rollouts run ahead of the trainer. */
  staleness: z.int().min(0).max(1000),
  /** What happens to groups with older turns. */
  stale: z.enum(STALE_NAMES),
  /** For training; evaluation uses 0. */
  temperature: z.number().min(0.01).max(2),
  /** How rewards become advantages. */
  algorithm: z.enum(ALGORITHMS),
  /** What has equal weight in a step: every trained token, or every rollout. */
  weighting: z.enum(WEIGHTINGS),
  /** Discount on the rewards of later turns, unless the workflow defines one. Undefined: rewards are used as given. */
  turnDiscount: share.optional(),
  learningRate: positive.max(1),
  /** Linear warmup steps. The learning rate also decays linearly to a tenth over the run. */
  warmupSteps: z.int().min(0),
  adam: z.strictObject({
    beta1: share,
    beta2: share,
    epsilon: positive,
    weightDecay: z.number().min(0),
    maxGradNorm: z.number().min(0),
  }),
  /** What a step minimises. */
  loss: z.enum(LOSS_NAMES),
  clipLow: share,
  clipHigh: z.number().min(0),
  /** For ppo: a token with a negative advantage costs at most this many times its size. Default: no bound. */
  dualClip: z.number().gt(1).optional(),
  /** For decoupled_ppo: one importance weight for each token (default) or for each sample. */
  isLevel: z.enum(IS_LEVELS).optional(),
  /** For decoupled_ppo: what becomes of a weight out of bounds. Default: truncate. */
  isAction: z.enum(IS_ACTIONS).optional(),
  /** For decoupled_ppo: the largest importance weight. Default 5. */
  isCap: z.number().gt(1).optional(),
  /** For decoupled_ppo: the smallest importance weight. Default: none. */
  isFloor: z.number().gt(0).max(1).optional(),
  /** For dro: how hard it pulls back to the sampling policy. Default 0.05. */
  droBeta: positive.optional(),
  /** For dpo: how hard it pulls back to the initial policy. Default 0.1. */
  dpoBeta: positive.optional(),
  /** Coefficient of the KL penalty against the initial policy. 0: none. */
  kl: z.number().min(0).max(1000),
  klEstimator: z.enum(KL_ESTIMATORS),
  /** Coefficient of the entropy bonus. 0: none. */
  entropy: z.number().min(0).max(1000),
  /** A rollout within this many sampled tokens of its limit loses up to `overlongFactor` (default 1) of its value. Default: none does. */
  overlongBuffer: count.optional(),
  overlongFactor: positive.optional(),
  /** Steps between evaluations on `evalTasks` held-out tasks. 0: only before and after training. */
  evalEvery: natural,
  evalTasks: count,
  /** Training ends after this many evaluations without a new best. 0: never. */
  patience: natural,
  /** Steps between checkpoints. A resumed run recomputes the steps in between from the store. */
  checkpointEvery: count,
  /** Seconds after which no new step starts. */
  maxTime: z.number('expected seconds').gt(0).optional(),
  /** Sampled tokens after which no new step starts. */
  maxTokens: positive.optional(),
  /** A training run whose rollouts are trained on, less what marks exclude; no new ones are made for training. */
  from: file.optional(),
  /** A run whose successes, or a file whose conversations, the policy is taught before it is trained. */
  warmStart: file.optional(),
  /** Most passes over them. */
  warmStartEpochs: count,
  warmStartLearningRate: positive.max(1),
};

const { engine, model, baseModel, baseURL, trained, loraRank, loraAlpha, context, seed, threads } = runShape;
const sftShape = {
  engine,
  model,
  baseModel,
  baseURL,
  trained,
  loraRank,
  loraAlpha,
  context,
  seed,
  threads,
  /** A run, of which the successes are taught, or a JSONL file of conversations. */
  from: file,
  run: file,
  /** Most passes over the conversations. */
  epochs: count,
  /** Conversations per optimizer step. */
  batch: count,
  /** Share of the tasks that are not taught, to see when to end. 0: none. */
  validation: z.number().min(0).lt(1),
  /** Ends after so many measurements of the validation loss without a new lowest one. 0: never. */
  patience: natural,
  learningRate: positive.max(1),
};

const runSchema = z.strictObject(runShape);
const evaluationSchema = z.strictObject({ ...runShape, ...evaluationShape });
const trainSchema = z.strictObject({ ...runShape, ...trainShape });
const sftSchema = z.strictObject(sftShape);

/** What a config file may hold: every setting of `train` and `eval`, each optional. */
export const configShape = {
  ...trainShape,
  ...runShape,
  ...evaluationShape,
  entry: file,
  limits: runShape.limits.partial(),
  apiKeyEnv: file.regex(/^[A-Za-z_]\w*$/, 'expected the name of an environment variable, found something else'),
};
export const SETTINGS_OF = { train: Object.keys(trainSchema.shape), eval: Object.keys(evaluationSchema.shape) };

export type RunSettings = Readonly<Required<z.infer<typeof runSchema>>>;
export type EvaluationSettings = Readonly<Required<z.infer<typeof evaluationSchema>>>;
export type TrainSettings = Readonly<Required<z.infer<typeof trainSchema>>>;
export type SftSettings = Readonly<Required<z.infer<typeof sftSchema>>>;
export type SftRequest = Pick<SftSettings, 'from'> & Partial<SftSettings>;
export type EvaluationRequest = Pick<EvaluationSettings, 'entry'> & Partial<EvaluationSettings>;
export type TrainRequest = Pick<TrainSettings, 'entry'> & Partial<TrainSettings>;
/** The settings of that run hold, the entry included, unless others are given. */
export type TrainFromRequest = { readonly from: string } & Partial<TrainSettings>;

/** Combinations of settings that are not allowed. */
function conflictsIn(settings: EvaluationSettings | TrainSettings | SftSettings): readonly (string | false)[] {
  const { engine, baseModel, baseURL, loraRank, loraAlpha, trained } = settings;
  const { run, flow, flows, apiKeyEnv, store, workers, limits }: Partial<TrainSettings> = settings as Partial<TrainSettings>;
  const trains = 'steps' in settings || 'epochs' in settings;
  const embedded = (['trained', 'loraAlpha', 'context'] as const).find((name) => settings[name] !== undefined);
  const { username = '', password = '' } = baseURL === undefined ? {} : new URL(baseURL);
  return [
    flows !== undefined && flow === undefined && 'flow: expected the name of a flow of the flows file, found none',
    engine !== 'tinker' && baseModel !== undefined && 'baseModel: expected engine tinker beside it: it is for a Tinker server',
    isApi(engine) && loraRank !== undefined && 'loraRank: expected engine embedded or tinker beside it: an API trains nothing',
    engine === 'embedded' &&
      loraRank !== undefined &&
      !trains &&
      'loraRank: expected engine tinker beside it: an evaluation trains no adapter',
    engine !== 'embedded' && embedded !== undefined && `${embedded}: expected engine embedded beside it`,
    trained === 'all' && loraRank !== undefined && 'loraRank: expected adapters to be trained, found trained: all',
    trained === 'all' && loraAlpha !== undefined && 'loraAlpha: expected adapters to be trained, found trained: all',
    engine === 'embedded' &&
      baseURL !== undefined &&
      'baseURL: expected engine openai, anthropic or tinker beside it, found none',
    !isApi(engine) && apiKeyEnv !== undefined && 'apiKeyEnv: expected engine openai or anthropic beside it',
    isApi(engine) &&
      baseURL === undefined &&
      `baseURL: expected the address of the server, or a key for ${APIS[engine].baseURL} in ${apiKeyEnv ?? APIS[engine].keyEnv}`,
    (workers && limits && limits.deadlineMs > 82_800_000) === true &&
      'limits.deadlineMs: expected 23 hours at most beside workers',
    workers !== undefined && store === undefined && 'store: expected a PostgreSQL database, for the workers to share, found none',
    run === undefined && store !== undefined && 'store: expected a run beside it: without one, nothing is kept',
    username + password !== '' && 'baseURL: expected an address without a password; apiKeyEnv names the variable with the key',
    ...('steps' in settings ? conflictsInTraining(settings) : []),
  ];
}

function conflictsInTraining(settings: TrainSettings): readonly (string | false)[] {
  const { engine, temperature, algorithm, weighting, patience, evalEvery, split, heldOut, staleness, stale, loss } = settings;
  const { from, warmStart, warmStartEpochs, warmStartLearningRate } = settings;
  const isWeighted = algorithm === 'dr-grpo' && weighting !== 'tokens';
  const isScoredAtOne = engine === 'tinker' && temperature !== 1;
  const isMeasured = heldOut !== undefined || split !== undefined;
  return [
    isWeighted && 'weighting: expected tokens with dr-grpo: it divides by a constant of its own',
    warmStart === undefined &&
      (warmStartEpochs !== TRAIN_DEFAULTS.warmStartEpochs || warmStartLearningRate !== TRAIN_DEFAULTS.warmStartLearningRate) &&
      'warmStart: expected a run or a file to teach beside warmStartEpochs and warmStartLearningRate, found none',
    loss === 'dpo' && stale === 'weigh' && 'stale: expected drop or keep beside dpo: both rollouts of a pair count alike',
    staleness === 0 && stale !== 'drop' && `stale: expected staleness of at least 1 beside ${stale}: with 0, nothing gets stale`,
    from !== undefined && staleness > 0 && 'staleness: expected 0 beside from: rollouts that are kept do not run ahead',
    patience > 0 && evalEvery === 0 && 'patience: expected evaluations on the way to count, found evalEvery 0',
    isScoredAtOne &&
      'temperature: expected 1 with a Tinker server: it scores tokens at temperature 1, whatever they were sampled at',
    split !== undefined && heldOut !== undefined && 'split: expected either a share to hold out or held-out tasks, found both',
    patience > 0 && !isMeasured && 'patience: expected held-out tasks to evaluate on, found none',
    ...conflictsInObjective(settings),
  ];
}

/** Settings that belong to one loss. Beside another they would do nothing. */
const OF_LOSS = {
  dualClip: 'ppo',
  isLevel: 'decoupled_ppo',
  isAction: 'decoupled_ppo',
  isCap: 'decoupled_ppo',
  isFloor: 'decoupled_ppo',
  droBeta: 'dro',
  dpoBeta: 'dpo',
} as const;

function conflictsInObjective(settings: TrainSettings): readonly (string | false)[] {
  const { loss, algorithm, weighting, kl, klEstimator, entropy, overlongBuffer, overlongFactor, turnDiscount, limits } = settings;
  const isPaired = loss === 'dpo';
  const isShaped = overlongBuffer !== undefined;
  const isSpread = turnDiscount !== undefined;
  const names = Object.keys(OF_LOSS) as (keyof typeof OF_LOSS)[];
  const misplaced = names.filter((name) => settings[name] !== undefined && loss !== OF_LOSS[name]);
  return [
    ...misplaced.map((name) => `${name}: expected loss ${OF_LOSS[name]} beside it, found ${loss}`),
    isPaired && algorithm !== 'grpo' && 'algorithm: expected none beside loss dpo, which compares pairs of rollouts',
    isPaired && weighting !== 'tokens' && 'weighting: expected none beside loss dpo: every pair counts alike',
    isPaired && kl > 0 && 'kl: expected 0 beside loss dpo: it pulls to the same reference by itself (dpoBeta)',
    isPaired && entropy > 0 && 'entropy: expected 0 beside loss dpo, whose tokens are weighted by preference',
    isPaired && isSpread && 'turnDiscount: expected none beside loss dpo, which compares values of whole rollouts',
    klEstimator !== 'k3' && kl === 0 && 'klEstimator: expected kl above 0 beside it, found 0',
    !isShaped && overlongFactor !== undefined && 'overlongFactor: expected overlongBuffer beside it, found none',
    isShaped && isSpread && 'overlongBuffer: expected no turnDiscount, which makes rewards by turn of the value that it lowers',
    (overlongBuffer ?? 0) > limits.tokens &&
      `overlongBuffer: expected at most the ${limits.tokens} tokens that a rollout may sample, found ${overlongBuffer}`,
  ];
}

/** Tinker's default: gradients of large models are small, and some servers average where ours sums. */
const TINKER_EPSILON = 1e-12;

export function adamFor(engine: RunSettings['engine']): TrainSettings['adam'] {
  return engine === 'tinker' ? { ...TRAIN_DEFAULTS.adam, epsilon: TINKER_EPSILON } : TRAIN_DEFAULTS.adam;
}

export function evaluationSettings(request: EvaluationRequest): EvaluationSettings {
  checkEntry(request.entry);
  const { n = 1, run, rows } = request;
  const engine = engineOf(request);
  const { tokens = API_DEFAULTS.limits.tokens } = request.limits ?? {};
  return checkSettings({
    ...EVAL_DEFAULTS,
    // No limit for one call besides the rollout's.
    ...(isApi(engine) && { ...API_DEFAULTS, callTokens: tokens }),
    ...(engine === 'tinker' && { concurrency: TINKER_CONCURRENCY }),
    // Several rollouts of a task should differ; a single one should be the policy's best guess.
    temperature: n > 1 ? 1 : 0,
    ...defined(request),
    entry: request.entry,
    n,
    run,
    agentTemperature: request.agentTemperature ?? (isApi(engine) && request.temperature === undefined ? true : undefined),
    rows: rows === undefined ? undefined : tidyRows(rows),
    engine,
    baseURL: baseURLOf(engine, request),
    heldOut: request.heldOut ?? usualHeldOut(request.entry),
  });
}

export function sftSettings(request: SftRequest): SftSettings {
  const engine = engineOf(request);
  if (isApi(engine)) throw new TrainyardError('USAGE', `engine: expected embedded or tinker, found ${engine}: it trains nothing`);
  return checkSettings({
    ...SFT_DEFAULTS,
    ...defined(request),
    engine,
    from: resolve(request.from),
    model: resolve(request.model ?? BASE_MODEL),
    baseURL: baseURLOf(engine, request),
    run: request.run ?? freeRun('sft'),
  });
}

/** Throws USAGE: an API tells neither tokens nor log-probabilities, so nothing could be trained on exactly what was sampled. */
function untrainable({ entry, model = 'NAME', baseURL }: TrainRequest, engine: ApiName): TrainyardError {
  const agent = typeof entry === 'string' ? shellWord(entry) : '<entry>';
  const at = baseURL === undefined ? '' : ` --base-url ${shellWord(baseURL)}`;
  const found = `engine: ${engine} cannot be trained: an API gives neither the tokens that were sampled nor their log-probabilities`;
  return new TrainyardError('USAGE', found, {
    hint: `measure it with trainyard eval ${agent} --engine ${engine}${at} --model ${shellWord(model)}; train the embedded policy with trainyard train ${agent} --engine embedded, or a model at a Tinker server with --engine tinker --model <folder>`,
  });
}

/** Without `heldOut`, `split` or a held-out.jsonl beside the entry, nothing is evaluated. */
export function trainSettings(request: TrainRequest): TrainSettings {
  checkEntry(request.entry);
  const found = usualHeldOut(request.entry);
  const engine = engineOf(request);
  if (isApi(engine)) throw untrainable(request, engine);
  const { trained, loraRank, loraAlpha } = request;
  const wantsAdapters = engine === 'embedded' && (loraRank ?? loraAlpha) !== undefined;
  return checkSettings({
    ...TRAIN_DEFAULTS,
    ...(engine === 'tinker' && { concurrency: TINKER_CONCURRENCY }),
    adam: adamFor(engine),
    ...defined(request),
    entry: request.entry,
    engine,
    baseURL: baseURLOf(engine, request),
    // Tokens of older versions need their weights corrected; ppo would clip them instead.
    loss: request.loss ?? ((request.staleness ?? 0) > 0 ? 'decoupled_ppo' : TRAIN_DEFAULTS.loss),
    tasks: request.tasks ?? usualTasks(request.entry),
    heldOut: request.heldOut ?? (request.split === undefined && existsSync(found) ? found : undefined),
    run: request.run ?? usualRun(request.entry),
    trained: trained ?? (wantsAdapters ? 'adapters' : undefined),
    model: resolve(request.model ?? BASE_MODEL),
  });
}

/** A checkpoint whose weights are at a Tinker server needs the tinker engine. */
function engineOf({ engine, model }: Partial<Pick<RunSettings, 'engine' | 'model'>>): RunSettings['engine'] {
  const chosen = engine ?? (model !== undefined && existsSync(join(model, 'tinker.json')) ? 'tinker' : EVAL_DEFAULTS.engine);
  if (chosen === 'tinker' && model === undefined) {
    throw new TrainyardError('USAGE', 'model: expected the folder of the model at the Tinker server, found none', {
      hint: 'give --model a folder with its config.json, tokenizer.json and tokenizer_config.json',
    });
  }
  return chosen;
}

/** Falls back to the environment, so that the run records the server it began with. */
export function baseURLOf(
  engine: RunSettings['engine'],
  { baseURL, apiKeyEnv }: Pick<Partial<RunSettings>, 'baseURL' | 'apiKeyEnv'>,
): string | undefined {
  if (engine === 'tinker') return baseURL ?? (process.env['TINKER_BASE_URL'] || undefined);
  if (!isApi(engine)) return baseURL;
  const api = APIS[engine];
  // With a key of the API's own service, its address is not needed.
  return baseURL ?? (process.env[api.urlEnv] || (process.env[apiKeyEnv ?? api.keyEnv] ? api.baseURL : undefined));
}

function isIterable(value: unknown): boolean {
  return typeof value === 'object' && value !== null && (Symbol.iterator in value || Symbol.asyncIterator in value);
}

/** Returns the settings unchanged, or throws USAGE. */
export function checkSettings<T extends EvaluationSettings | TrainSettings | SftSettings>(settings: T): T {
  const schema = 'steps' in settings ? trainSchema : 'epochs' in settings ? sftSchema : evaluationSchema;
  const { error } = schema.safeParse(settings);
  const problems =
    error?.issues.map(({ path, message }) => (path.length === 0 ? message : `${path.join('.')}: ${message}`)) ??
    conflictsIn(settings).filter((problem) => problem !== false);
  if (problems.length === 0) return settings;
  throw new TrainyardError('USAGE', problems.join('; '), { hint: 'trainyard help settings lists every setting' });
}

/** Checked before files beside it are looked up. */
function checkEntry(entry: unknown): void {
  if (typeof entry === 'string' || isEntry(entry)) return;
  throw new TrainyardError('USAGE', `entry: expected a path or { workflow, grader? }, found ${JSON.stringify(entry)}`);
}
