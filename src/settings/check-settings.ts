/**
 * Settings of a run: which exclude each other, and how they derive from a request. Finds task files beside the entry, and reports all problems
 * at once before anything is opened or spent. table.ts has each setting by itself.
 */
import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { TrainyardError } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import type { TaskSource } from '../tasks/rows.ts';
import { entryKind, type Verb } from './kinds.ts';
import { tidyRows } from './row-ranges.ts';
import { EVAL_DEFAULTS, faultsIn, flat, type Row, rowOf, type SettingsOf, SFT_DEFAULTS, TRAIN_DEFAULTS } from './setting-rows.ts';
import {
  APIS,
  type ApiName,
  BASE_MODEL,
  freeRun,
  isApi,
  shellWord,
  TINKER_CONCURRENCY,
  usualHeldOut,
  usualRun,
  usualTasks,
} from './settings.ts';
import { API_DEFAULTS } from './table.ts';

export type EvaluationSettings = SettingsOf<'eval'> & { readonly heldOut: TaskSource };
export type TrainSettings = SettingsOf<'train'> & { readonly run: string };
/** What training and evaluation have in common. */
export type RunSettings = Pick<
  TrainSettings,
  Exclude<keyof TrainSettings & keyof EvaluationSettings, 'run' | 'heldOut' | 'temperature'>
>;
export type SftSettings = SettingsOf<'sft'> & { readonly from: string; readonly run: string };
export type SftRequest = Pick<SftSettings, 'from'> & Partial<SftSettings>;
/** Groups may be given in part. */
type Groups = Partial<Pick<TrainSettings, 'limits' | 'adam'>>;
type InPart = { readonly [Name in keyof Groups]?: Partial<Groups[Name]> };
type Request<Settings> = Partial<Omit<Settings, keyof Groups>> & Pick<InPart, keyof Settings & keyof Groups>;
export type EvaluationRequest = Pick<EvaluationSettings, 'entry'> & Request<EvaluationSettings>;
export type TrainRequest = Pick<TrainSettings, 'entry'> & Request<TrainSettings>;
/** The settings of that run hold, the entry included, unless others are given. */
export type TrainFromRequest = { readonly from: string } & Request<TrainSettings>;

function givenIn(settings: object): readonly Row[] {
  return flat(settings).flatMap(([name, value]) => (value === undefined ? [] : (rowOf(name) ?? [])));
}

/** Combinations of settings that are not allowed. */
function conflictsIn(settings: EvaluationSettings | TrainSettings | SftSettings): readonly (string | false)[] {
  const { engine, baseURL, loraRank } = settings;
  const ofRun: Partial<Omit<TrainSettings, 'run'>> & Partial<Pick<EvaluationSettings, 'run'>> = settings;
  const { run, flow, flows, apiKeyEnv, store, workers, limits, loraAlpha, trained } = ofRun;
  const trains = 'steps' in settings || 'epochs' in settings;
  const { username = '', password = '' } = baseURL === undefined ? {} : new URL(baseURL);
  return [
    flows !== undefined && flow === undefined && 'flow: expected the name of a flow of the flows file, found none',
    ...givenIn(settings).map(
      ({ name, ofEngine = engine }) => ofEngine !== engine && `${name}: expected engine ${ofEngine} beside it`,
    ),
    isApi(engine) && loraRank !== undefined && 'loraRank: expected engine embedded or tinker beside it: an API trains nothing',
    engine === 'embedded' &&
      loraRank !== undefined &&
      !trains &&
      'loraRank: expected engine tinker beside it: an evaluation trains no adapter',
    trained === 'all' && loraRank !== undefined && 'loraRank: expected adapters to be trained, found trained: all',
    trained === 'all' && loraAlpha !== undefined && 'loraAlpha: expected adapters to be trained, found trained: all',
    engine === 'embedded' &&
      baseURL !== undefined &&
      'baseURL: expected engine openai, anthropic or tinker beside it, found none',
    !isApi(engine) && apiKeyEnv !== undefined && 'apiKeyEnv: expected engine openai or anthropic beside it',
    isApi(engine) &&
      baseURL === undefined &&
      `no ${apiKeyEnv ?? APIS[engine].keyEnv} is set, the key for ${APIS[engine].baseURL}, and no baseURL of another server is given`,
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

function conflictsInObjective(settings: TrainSettings): readonly (string | false)[] {
  const { loss, algorithm, weighting, kl, klEstimator, entropy, overlongBuffer, overlongFactor, turnDiscount, limits } = settings;
  const isPaired = loss === 'dpo';
  const isShaped = overlongBuffer !== undefined;
  const isSpread = turnDiscount !== undefined;
  return [
    ...givenIn(settings).map(
      ({ name, ofLoss = loss }) => ofLoss !== loss && `${name}: expected loss ${ofLoss} beside it, found ${loss}`,
    ),
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
  const { limits } = isApi(engine) ? API_DEFAULTS : EVAL_DEFAULTS;
  const { tokens = limits.tokens } = request.limits ?? {};
  return checkSettings('eval', {
    ...EVAL_DEFAULTS,
    // No limit for one call besides the rollout's.
    ...(isApi(engine) && { ...API_DEFAULTS, callTokens: tokens }),
    ...(engine === 'tinker' && { concurrency: TINKER_CONCURRENCY }),
    // Several rollouts of a task should differ; a single one should be the policy's best guess.
    temperature: n > 1 ? 1 : 0,
    ...defined(request),
    limits: inPart(limits, request.limits),
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

/** A group of settings, of which only some members may be given. What is no group is left for the check. */
function inPart<Group extends object>(usual: Group, given: Partial<Group> | undefined): Group {
  if (given === undefined) return usual;
  return given instanceof Object ? { ...usual, ...defined(given) } : given;
}

export function sftSettings(request: SftRequest): SftSettings {
  const engine = engineOf(request);
  if (isApi(engine)) throw new TrainyardError('USAGE', `engine: expected embedded or tinker, found ${engine}: it trains nothing`);
  // Last, as in the digests of what was taught.
  const { patience, learningRate, ...usual } = SFT_DEFAULTS;
  return checkSettings('sft', {
    ...usual,
    patience,
    learningRate,
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
  return new TrainyardError(
    'USAGE',
    found,
    `measure it with trainyard eval ${agent} --engine ${engine}${at} --model ${shellWord(model)}; train the embedded policy with trainyard train ${agent} --engine embedded, or a model at a Tinker server with --engine tinker --model <folder>`,
  );
}

/** Without `heldOut`, `split` or a held-out.jsonl beside the entry, nothing is evaluated. */
export function trainSettings(request: TrainRequest): TrainSettings {
  checkEntry(request.entry);
  const found = usualHeldOut(request.entry);
  const engine = engineOf(request);
  if (isApi(engine)) throw untrainable(request, engine);
  const { trained, loraRank, loraAlpha } = request;
  const wantsAdapters = engine === 'embedded' && (loraRank ?? loraAlpha) !== undefined;
  return checkSettings('train', {
    ...TRAIN_DEFAULTS,
    ...(engine === 'tinker' && { concurrency: TINKER_CONCURRENCY }),
    ...defined(request),
    limits: inPart(TRAIN_DEFAULTS.limits, request.limits),
    adam: inPart(adamFor(engine), request.adam),
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
    throw new TrainyardError(
      'USAGE',
      'model: expected the folder of the model at the Tinker server, found none',
      'give --model a folder with its config.json, tokenizer.json and tokenizer_config.json',
    );
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

/** Returns the settings unchanged, or throws USAGE. */
export function checkSettings<T extends EvaluationSettings | TrainSettings | SftSettings>(verb: Verb, settings: T): T {
  const faults = faultsIn(settings, verb, true).map(({ name, message }) => `${name}: ${message}`);
  const problems = faults.length > 0 ? faults : conflictsIn(settings).filter((problem) => problem !== false);
  if (problems.length === 0) return settings;
  throw new TrainyardError('USAGE', problems.join('; '), 'trainyard help settings lists every setting');
}

/** Checked before files beside it are looked up. */
function checkEntry(entry: unknown): void {
  if (entryKind.accepts(entry)) return;
  throw new TrainyardError('USAGE', `entry: expected ${entryKind.expected}, found ${JSON.stringify(entry)}`);
}
