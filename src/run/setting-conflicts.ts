/** Combinations of settings that are not allowed, each in words. Values of single settings are checked by their schema. */
import type { EvaluationSettings, RunSettings, SftSettings, TrainSettings } from './check-settings.ts';
import { APIS, isApi, TRAIN_DEFAULTS } from './settings.ts';

export function conflictsIn(settings: EvaluationSettings | TrainSettings | SftSettings): readonly (string | false)[] {
  const { engine, baseModel, baseURL, loraRank, loraAlpha, trained } = settings;
  const { flow, flows, apiKeyEnv }: Partial<RunSettings> = settings as Partial<RunSettings>;
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
  ...{ dualClip: 'ppo', isLevel: 'decoupled_ppo', isAction: 'decoupled_ppo', isCap: 'decoupled_ppo', isFloor: 'decoupled_ppo' },
  ...{ droBeta: 'dro', dpoBeta: 'dpo' },
} as const;

function conflictsInObjective(settings: TrainSettings): readonly (string | false)[] {
  const { loss, algorithm, weighting, kl, klEstimator, entropy, overlongBuffer, overlongFactor, turnDiscount, limits } = settings;
  const [isPaired, isShaped, isSpread] = [loss === 'dpo', overlongBuffer !== undefined, turnDiscount !== undefined];
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
