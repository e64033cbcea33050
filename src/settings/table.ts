/**
 * Every setting, in one row: the commands that have it, the kind of value, the default, and what it means. Flags, `--set`, config files, request types,
 * messages, what may change on `--resume`, `trainyard help settings` and docs/reference/settings.md follow from it (setting-rows.ts, check-settings.ts).
 * Settings that exclude each other are check-settings.ts's. The defaults are the demo's recipe; bench/LOG.md records the runs behind them.
 */
import { availableParallelism } from 'node:os';
import {
  database,
  decimal,
  derived,
  entryKind,
  milliseconds,
  names,
  oneOf,
  only,
  optional,
  orNone,
  path,
  prices,
  seconds,
  section,
  setting,
  taskSource,
  text,
  url,
  variable,
  whole,
} from './kinds.ts';
import {
  ALGORITHMS,
  BASE_MODEL,
  DPO_BETA,
  DRO_BETA,
  ENGINES,
  IS_ACTIONS,
  IS_LEVELS,
  KL_ESTIMATORS,
  LOSS_NAMES,
  OVERLONG_FACTOR,
  STALE_NAMES,
  TINKER_CONCURRENCY,
  WEIGHTINGS,
} from './settings.ts';

const ALL = 'train eval try preflight';
const RUNS = 'train eval preflight';
const TRAINING = 'train preflight';
const count = whole(1, 1_000_000);
const natural = whole(0);
const processes = whole(1, 256);
const share = decimal('a share from 0 to 1', (x) => x >= 0 && x <= 1);
const positive = decimal('a number above 0', (x) => x > 0);
const rate = decimal('a number above 0, at most 1', (x) => x > 0 && x <= 1);
const notNegative = decimal('a number of at least 0', (x) => x >= 0);
const coefficient = decimal('a number from 0 to 1000', (x) => x >= 0 && x <= 1000);
const aboveOne = decimal('a number above 1', (x) => x > 1);
const split = decimal('a share between 0 and 1, such as 0.1, so that both sides have tasks', (x) => x > 0 && x < 1);
const warm = decimal('a number from 0.01 to 2', (x) => x >= 0.01 && x <= 2);
const FILES = 'JSONL, CSV or Parquet';

/** Servers answer more slowly than the embedded policy, and reasoning counts as tokens. */
export const API_DEFAULTS = { concurrency: 16, limits: { turns: 16, tokens: 65_536, deadlineMs: 600_000 } } as const;
const ofApi = (usual: string, atApi: string): string => `${usual}; behind an API ${atApi}`;

/** In the order in which run.json has them. A title may come more than once. */
export const SETTINGS = {
  ...section('Agent and tasks', {
    entry: derived(
      ALL,
      entryKind,
      'none',
      'The module that exports the workflow and the grader; from TypeScript also { workflow, grader }.',
      {
        flag: '',
      },
    ),
    tasks: derived(
      '*train *preflight',
      taskSource,
      'train.jsonl beside the entry',
      `Tasks to train on: ${FILES}. From TypeScript also a list or iterable of rows.`,
    ),
    heldOut: derived(
      '*train *eval *try *preflight',
      orNone(taskSource),
      'held-out.jsonl beside the entry',
      `Tasks to evaluate on: ${FILES}. Without them, a training is not measured.`,
      {
        for: { try: { flag: 'tasks', meaning: `File of the task: ${FILES}.` } },
      },
    ),
    rows: derived('*eval', orNone(text('<list>')), 'all', 'Rows of the task file to evaluate on, such as 3,7,10-20.'),
    flow: optional(ALL, text('<name>'), 'Name of the agent flow to run. A task’s agent_name chooses another.'),
    flows: optional(ALL, path('<file>'), 'YAML list of agent flows. The entry may then be left out, or hold only the grader.'),
  }),
  ...section('Machine', {
    isolation: optional(
      'train eval *try preflight',
      oneOf(['none', 'process'], '<where>'),
      'Where rollouts run: in this process, or each in a sandboxed process of its own.',
      {
        shown: 'what the entry says',
        mayChange: 'own',
      },
    ),
  }),
  ...section('Policy', {
    engine: setting(
      '*train *eval *try *preflight *sft *serve',
      oneOf(ENGINES, '<where>'),
      'embedded',
      'Where the policy is: in this process, on a Tinker server, or behind an API. Behind an API it can be measured, not trained. A checkpoint of a Tinker server implies tinker.',
    ),
    model: setting(
      '*train *eval *try *preflight *sft *serve',
      text('<model>'),
      BASE_MODEL,
      'Folder, checkpoint, .gguf file, or Owner/Name after trainyard model get; behind an API, the model’s name there.',
      {
        shown: 'the base policy that ships with Trainyard',
      },
    ),
    baseModel: optional('train eval try preflight *sft *serve', text('<name>'), 'The Tinker server’s name for the model.', {
      shown: 'the only one it has',
      ofEngine: 'tinker',
    }),
    baseURL: optional('*train *eval *try *preflight *sft *serve', url, 'Address of the server.', {
      shown: 'TINKER_BASE_URL, OPENAI_BASE_URL or ANTHROPIC_BASE_URL, or the API’s own if its key is set',
      mayChange: true,
    }),
    apiKeyEnv: optional(
      'train eval try preflight *serve',
      variable,
      'Environment variable that holds the key of an API. The key itself is stored nowhere.',
      {
        shown: 'OPENAI_API_KEY or ANTHROPIC_API_KEY',
        mayChange: true,
      },
    ),
    trained: optional(
      'train preflight *sft',
      oneOf(['all', 'adapters'], '<what>'),
      'What the embedded engine trains: all parameters, or adapters (LoRA) beside frozen weights.',
      {
        shown: 'all below 20 million parameters, else adapters',
        ofEngine: 'embedded',
      },
    ),
    loraRank: optional(
      'train eval try preflight *sft',
      whole(1, 1024),
      'Rank of the adapters, embedded at most 256. Asks for adapters. An evaluation takes it only with engine tinker.',
      {
        shown: '16; with engine tinker 32',
      },
    ),
    loraAlpha: optional(
      'train preflight *sft',
      decimal('a number above 0, at most 4096', (x) => x > 0 && x <= 4096),
      'Scale of the adapters: they are multiplied by alpha / rank. Embedded engine only; asks for adapters.',
      {
        shown: 'twice the rank',
        ofEngine: 'embedded',
      },
    ),
    context: optional(
      'train eval try preflight *sft *serve',
      count,
      'Maximum tokens of a prompt and its answer together. A smaller value needs less memory. Embedded engine only.',
      {
        shown: 'what the model was made for',
        ofEngine: 'embedded',
      },
    ),
  }),
  ...section('Sampling and limits', {
    seed: setting(
      '*train *eval *try preflight *sft *serve',
      natural,
      1,
      'Seed of everything random: the order of tasks and every model call.',
    ),
  }),
  ...section('Machine', {
    concurrency: setting('*train *eval preflight', count, 64, 'Rollouts that run at once.', {
      shown: ofApi(`64; at a Tinker server ${TINKER_CONCURRENCY}`, `${API_DEFAULTS.concurrency}`),
      mayChange: 'own',
    }),
    // One thread per gradient buffer. More threads could not train and would only split the sampler's batches.
    threads: setting(
      'train eval try preflight *sft *serve',
      processes,
      Math.min(availableParallelism(), 16),
      'Maximum threads of the embedded policy. A large model that leaves no memory for all gets fewer. Results do not depend on it.',
      {
        shown: 'the cores, at most 16',
        mayChange: 'own',
      },
    ),
  }),
  ...section('Sampling and limits', {
    limits: {
      turns: setting(
        'train eval *try preflight',
        count,
        16,
        'Maximum model calls of one rollout. A rollout cut off by calls, tokens or context is graded.',
        { flag: 'turns' },
      ),
      tokens: setting('*train *eval *try preflight', count, 4096, 'Maximum tokens that one rollout may sample.', {
        flag: 'rollout-tokens',
        shown: ofApi('4096', `${API_DEFAULTS.limits.tokens}`),
      }),
      deadlineMs: setting(
        '*train *eval preflight',
        milliseconds,
        60_000,
        'Time for one rollout. The wait for the first answer of the policy in a run does not count. A rollout that reaches its deadline is not graded.',
        {
          flag: 'deadline',
          shown: ofApi('60s', `${API_DEFAULTS.limits.deadlineMs / 1000}s`),
        },
      ),
    },
    callTokens: setting(
      ALL,
      count,
      256,
      'Maximum tokens that one model call may sample. A server is told of it only if it is less than rollout-tokens.',
      {
        shown: ofApi('256', 'rollout-tokens'),
      },
    ),
  }),
  ...section('Machine', {
    workflowWorkers: setting(
      ALL,
      processes,
      Math.min(2 * availableParallelism(), 16),
      'Processes of a workflow with isolation process, and so its rollouts at once.',
      {
        shown: 'two per core, at most 16',
        mayChange: 'own',
      },
    ),
  }),
  ...section('Grading', {
    graderWorkers: setting(ALL, processes, Math.min(availableParallelism(), 2), 'Processes that grade.', {
      shown: '2, on a single core 1',
      mayChange: 'own',
    }),
    graderDeadlineMs: setting(ALL, milliseconds, 10_000, 'Time for one grading. A grader’s own deadlineMs wins.', {
      flag: 'grader-deadline',
    }),
    graderRetries: setting(
      ALL,
      whole(0, 100),
      1,
      'How often a grading that threw, crashed or took too long is tried again. A grader’s own retries win.',
    ),
    graderMemoryMb: setting(
      ALL,
      whole(64, 1_048_576),
      2_048,
      'Memory of one grading process and everything it starts, in MB. A process that exceeds it is killed.',
    ),
  }),
  ...section('Reports', {
    transcripts: setting('train eval', natural, 0, 'Held-out conversations to show.', { mayChange: 'own' }),
  }),
  ...section('Training', {
    trainable: optional(ALL, names, 'Roles to train, separated by commas. An evaluation has the policy play them.', {
      shown: 'what the workflow says',
    }),
  }),
  ...section('Reports', {
    price: optional(
      RUNS,
      prices,
      'Prices of a million prompt tokens and of a million sampled tokens, in any currency. Costs are then estimated before a run and reported after an evaluation behind an API.',
      {
        mayChange: true,
      },
    ),
  }),
  ...section('Grading', {
    maxErrorShare: setting(
      RUNS,
      share,
      0.05,
      'Share of gradings that may fail, judged from 64 on, before the run ends with GRADER_BUDGET. 1: any share.',
      {
        mayChange: true,
        for: { eval: { usual: 0.25 } },
      },
    ),
  }),
  ...section('Machine', {
    store: optional(
      '*train *eval',
      database,
      'Keep rollouts in this PostgreSQL database: postgres://user@host/database. Its password is stored nowhere.',
      {
        shown: 'a file in the run’s directory',
        mayChange: 'own',
      },
    ),
    workers: optional(
      'train eval',
      only('external', 'external (start workers with trainyard worker; concurrency is how many rollouts run at once)', '<where>'),
      'With external, rollouts run in processes of trainyard worker, which share the store.',
      {
        shown: 'in this process',
        mayChange: 'own',
      },
    ),
  }),
  ...section('Agent and tasks', {
    minTasks: setting(TRAINING, count, 4, 'Fewer tasks to train on are refused.', { mayChange: true }),
    split: optional('*train', split, 'Share of the tasks to hold out, such as 0.1, instead of a file of held-out tasks.', {
      placeholder: '<share>',
    }),
  }),
  ...section('Training', {
    run: derived('*train *eval *sft', orNone(path()), 'runs/<entry>-<time>', 'Directory of the run.', {
      mayChange: 'own',
      for: {
        eval: {
          shown: 'runs/eval-<entry>-<time>',
          meaning: 'Directory of the evaluation. From TypeScript it has no default, and nothing is stored without it.',
        },
        sft: { shown: 'runs/sft-<time>' },
      },
    }),
    steps: setting('*train preflight', count, 40, 'Optimizer steps. The learning rate falls over all of them.', {
      mayChange: true,
    }),
    group: setting(
      '*train preflight',
      whole(2, 1_000_000, ': a rollout is compared with the others of its group'),
      8,
      'Rollouts per task, which are compared with each other.',
    ),
    groupsPerStep: setting(TRAINING, count, 8, 'Groups with signal, that is with different rewards, in a step.'),
    refill: setting(TRAINING, count, 3, 'A step samples at most this many times groups-per-step to find groups with signal.'),
  }),
  ...section('Asynchronous training', {
    staleness: setting(
      TRAINING,
      whole(0, 1000),
      0,
      'How many policy versions sampling may run ahead of training. 0: rollouts wait for the step.',
      { placeholder: '<k>', isOwn: true },
    ),
    stale: setting(
      TRAINING,
      oneOf(STALE_NAMES, '<rule>'),
      'drop',
      'What happens to groups that are older than staleness allows.',
      { isOwn: true },
    ),
  }),
  ...section('Training', {
    temperature: setting(
      'train *eval *try preflight',
      decimal('a number from 0 to 2', (x) => x >= 0 && x <= 2),
      1,
      'Sampling temperature of training rollouts; evaluations in a training use 0. With engine tinker, 1.',
      {
        for: {
          train: { kind: warm },
          preflight: { kind: warm },
          eval: {
            shown: '0, or 1 with several rollouts per task',
            meaning: 'Sampling temperature. Behind an API, what the agent asks for unless this is set.',
          },
          try: { meaning: 'Sampling temperature of the roles to train.' },
        },
      },
    ),
    algorithm: setting(TRAINING, oneOf(ALGORITHMS), 'grpo', 'How rewards become advantages.'),
    weighting: setting(
      TRAINING,
      oneOf(WEIGHTINGS, '<what>'),
      'tokens',
      'Whether every token or every rollout has the same weight in a step.',
    ),
    turnDiscount: optional(
      TRAINING,
      share,
      'How much of the reward of later turns counts for a turn, from 0 to 1, unless the workflow sets it.',
      { shown: 'rewards stay as they are' },
    ),
    learningRate: setting(
      '*train preflight *sft',
      rate,
      5e-4,
      'Learning rate of the first steps. It falls to a tenth over the run.',
    ),
    warmupSteps: setting(TRAINING, natural, 3, 'First steps over which the learning rate rises from near zero.'),
    adam: {
      beta1: setting(TRAINING, share, 0.9, 'AdamW: decay of the mean gradient.'),
      beta2: setting(TRAINING, share, 0.98, 'AdamW: decay of the mean squared gradient.'),
      epsilon: setting(TRAINING, positive, 1e-8, 'AdamW: added to the root of the squared gradient.', {
        shown: '1e-8; with engine tinker 1e-12',
      }),
      weightDecay: setting(TRAINING, notNegative, 0, 'AdamW: weight decay.'),
      maxGradNorm: setting(
        TRAINING,
        notNegative,
        1,
        'Largest norm of all gradients together; larger ones are scaled down. 0: any. Not every Tinker server clips.',
      ),
    },
  }),
  ...section('Loss', {
    // With staleness, decoupled_ppo: trainSettings.
    loss: setting(TRAINING, oneOf(LOSS_NAMES), 'ppo', 'What a step minimises.', {
      shown: 'ppo; with staleness decoupled_ppo, if the Tinker server has it',
      isOwn: true,
    }),
    clipLow: setting(
      TRAINING,
      share,
      0.2,
      'How far the probability ratio may fall below 1 before it is clipped. For ppo, cispo and gspo.',
    ),
    clipHigh: setting(
      TRAINING,
      notNegative,
      0.28,
      'How far the probability ratio may rise above 1 before it is clipped. For ppo, cispo and gspo.',
    ),
    dualClip: optional(TRAINING, aboveOne, 'For ppo: a token with a negative advantage costs at most this many times its size.', {
      shown: 'no bound',
      ofLoss: 'ppo',
    }),
    isLevel: optional(
      TRAINING,
      oneOf(IS_LEVELS, '<what>'),
      'For decoupled_ppo: one importance weight for each token, or for each sequence.',
      { shown: 'token', ofLoss: 'decoupled_ppo' },
    ),
    isAction: optional(
      TRAINING,
      oneOf(IS_ACTIONS, '<what>'),
      'For decoupled_ppo: a weight out of bounds is cut off there, or becomes 0.',
      { shown: 'truncate', ofLoss: 'decoupled_ppo' },
    ),
    isCap: optional(TRAINING, aboveOne, 'For decoupled_ppo: largest importance weight.', { shown: '5', ofLoss: 'decoupled_ppo' }),
    isFloor: optional(TRAINING, rate, 'For decoupled_ppo: smallest importance weight.', { ofLoss: 'decoupled_ppo' }),
    droBeta: optional(TRAINING, positive, 'For dro: strength of the pull towards the policy that sampled.', {
      shown: `${DRO_BETA}`,
      ofLoss: 'dro',
    }),
    dpoBeta: optional(TRAINING, positive, 'For dpo: strength of the pull towards the policy that training began with.', {
      shown: `${DPO_BETA}`,
      ofLoss: 'dpo',
    }),
    kl: setting(TRAINING, coefficient, 0, 'Coefficient of the KL penalty against the policy that training began with.'),
    klEstimator: setting(TRAINING, oneOf(KL_ESTIMATORS), 'k3', 'How the KL divergence is estimated.'),
    entropy: setting(TRAINING, coefficient, 0, 'Coefficient of the entropy bonus, for a policy that stops exploring.'),
    overlongBuffer: optional(
      TRAINING,
      count,
      'A rollout within this many tokens of rollout-tokens loses value, at the limit as much as overlong-factor.',
    ),
    overlongFactor: optional(TRAINING, positive, 'How much of its value a rollout loses at the limit, with overlong-buffer.', {
      shown: `${OVERLONG_FACTOR}`,
    }),
  }),
  ...section('Evaluations on the way', {
    evalEvery: setting(TRAINING, natural, 10, 'Steps between evaluations. 0: only before and after training.'),
    evalTasks: setting(
      TRAINING,
      count,
      64,
      'Held-out tasks of each, evenly spaced over the file. Before and after training, all are used.',
    ),
    patience: setting(
      'train preflight *sft',
      natural,
      0,
      'Training ends after this many evaluations in a row without a new best. 0: never.',
      {
        for: {
          sft: {
            usual: 2,
            meaning: 'Teaching ends after this many measurements in a row without a lower validation loss. 0: never.',
          },
        },
      },
    ),
  }),
  ...section('Start and end', {
    checkpointEvery: setting(
      TRAINING,
      count,
      1,
      'Steps between checkpoints. The last, the best and an interrupted step always get one.',
    ),
    maxTime: optional(TRAINING, seconds, 'No step begins after this time of the command. The run can be resumed.', {
      mayChange: true,
    }),
    maxTokens: optional(
      TRAINING,
      positive,
      'No step begins after this many sampled tokens, evaluations included. The run can be resumed.',
      {
        placeholder: '<n>',
        mayChange: true,
      },
    ),
    from: optional(
      '*train *sft',
      path('<run>'),
      'Train on the rollouts that this run kept, with its settings. Rollouts that curate excludes are left out, and no new ones are made.',
      { for: { sft: { flag: '' } }, isOwn: true },
    ),
    warmStart: optional(
      '*train preflight',
      path('<from>'),
      'First teach the policy the successes of this run, or the conversations of this JSONL file.',
      { isOwn: true },
    ),
    warmStartEpochs: setting(TRAINING, count, 3, 'Maximum passes over what a warm start teaches.', { isOwn: true }),
    warmStartLearningRate: setting(TRAINING, rate, 5e-4, 'Learning rate of a warm start. It falls to a tenth.', { isOwn: true }),
  }),
  ...section('Evaluation', {
    n: derived('*eval', count, '1', 'Rollouts per task.', { placeholder: '<k>' }),
    agentTemperature: derived(
      'eval try',
      orNone(only(true, 'true', '<true>')),
      'true unless temperature is set',
      'Behind an API: the temperature that the agent asks for wins.',
    ),
  }),
  ...section('Teaching (trainyard sft)', {
    epochs: setting('*sft', count, 3, 'Maximum passes over the conversations.'),
    batch: setting('*sft', count, 16, 'Conversations per optimizer step.'),
    validation: setting(
      '*sft',
      decimal('a share from 0 up to, but not, 1', (x) => x >= 0 && x < 1),
      0.1,
      'Share of the tasks that is not taught, to see when to end. 0: none.',
      { placeholder: '<share>' },
    ),
  }),
};
