/** The command line's flags: how each value is read, and the lists that verbs share. verbs.ts says which verb has which. */
import { InvalidArgumentError } from 'commander';
import {
  ALGORITHM_NAMES,
  API_DEFAULTS,
  DPO_BETA,
  DRO_BETA,
  ENGINES,
  EVAL_DEFAULTS,
  IS_ACTIONS,
  IS_LEVELS,
  KL_ESTIMATOR_NAMES,
  LOSS_NAMES,
  OVERLONG_FACTOR,
  STALE_NAMES,
  WEIGHTING_NAMES,
} from '../settings/settings.ts';

function refused(expected: string, text: string): InvalidArgumentError {
  return new InvalidArgumentError(`expected ${expected}, found ${JSON.stringify(text)}`);
}

function number(text: string): number {
  const value = Number(text);
  if (text.trim() === '' || !Number.isFinite(value)) throw refused('a number', text);
  return value;
}

const SECONDS = { s: 1, m: 60, h: 3600 } as const;

function duration(text: string): number {
  const parsed = /^(\d+(?:\.\d+)?)([smh]?)$/.exec(text);
  if (parsed === null) throw refused('a time such as 90s, 10m or 2h', text);
  return Number(parsed[1]) * SECONDS[(parsed[2] || 's') as keyof typeof SECONDS];
}

/** `or`: separator of the names in the error message. */
function oneOf(names: readonly string[], or = ', '): (text: string) => string {
  return (text) => {
    if (names.includes(text)) return text;
    throw refused(names.join(or), text);
  };
}

function external(text: string): string {
  if (text === 'external') return text;
  throw refused('external (start workers with trainyard worker; --concurrency is how many rollouts run at once)', text);
}

function roles(text: string): string[] {
  const names = text.split(',').map((name) => name.trim());
  if (names.some((name) => name === '')) throw new InvalidArgumentError('expected names separated by commas');
  return names;
}

function prices(text: string): readonly number[] {
  const both = text.split(',').map(number);
  if (both.length === 2 && both.every((price) => price >= 0)) return both;
  throw refused('two prices, of prompt and of sampled tokens, such as 0.15,0.60', text);
}

/** `why`: reason for the minimum, for the error message. */
function whole(least: number, most = Infinity, why = ''): (text: string) => number {
  return (text) => {
    if (!/^\d{1,15}$/.test(text)) throw refused('a whole number, 0 or more', text);
    const value = Number(text);
    if (value > most) throw new InvalidArgumentError(`expected at most ${most}`);
    if (value < least) throw new InvalidArgumentError(`expected at least ${least}${why}`);
    return value;
  };
}
export const natural = whole(0);
export const positive = whole(1, 1_000_000);
const port = whole(0, 65_535);
const groupSize = whole(2, 1_000_000, ': a rollout is compared with the others of its group');

function upTo(most: number, what: string): (text: string) => number {
  return (text) => {
    const value = number(text);
    if (value < 0 || value > most) throw refused(`${what} from 0 to ${most}`, text);
    return value;
  };
}
const temperature = upTo(2, 'a number');
const share = upTo(1, 'a share');

/** Parser of the value, or the allowed values. */
type Parse = ((text: string) => unknown) | readonly string[];
/** The default is only displayed; it comes from the setting of the same name. A flag that is not given stays absent. */
export type Flag = readonly [flag: string, meaning: string, parse?: Parse | undefined, byDefault?: unknown];

export const ENTRY = ['[entry]', 'module that exports the workflow and the grader'] as const;
const FILES = 'JSONL, CSV or Parquet';
const MODEL: readonly Flag[] = [
  [
    '--model <model>',
    'folder, checkpoint, .gguf file, or Owner/Name after trainyard model get (default: the base policy that ships with Trainyard); the name of a model behind an API',
  ],
  [
    '--engine <where>',
    'where the policy is: in this process, at a Tinker server, or behind an API, which cannot be trained',
    ENGINES,
  ],
  ['--base-url <url>', 'address of the server (default: TINKER_BASE_URL, or that of the API whose key is set)'],
  ['--api-key-env <name>', 'variable with the key of an API (default: OPENAI_API_KEY or ANTHROPIC_API_KEY, if set)'],
  ['--base-model <name>', 'the Tinker server’s name of the model (default: the only one it has)'],
  [
    '--context <n>',
    'most tokens of a prompt and its answer; less needs less memory (default: what the model was made for)',
    positive,
  ],
];
const CHECKPOINT: Flag = [
  '--checkpoint <dir>',
  'instead of --model: a checkpoint, or the directory of a run, of which the best is taken',
];
const TRAINABLE: Flag = ['--trainable <roles>', 'roles to train, separated by commas (default: those the workflow says)', roles];
const MIN_TASKS: Flag = ['--min-tasks <n>', 'refuse fewer tasks to train on', positive];
const FLOWS: readonly Flag[] = [
  ['--flow <name>', 'the agent flow to run, by its name; a task’s agent_name chooses another'],
  ['--flows <file>', 'YAML list of agent flows; then the entry may be left out'],
];
const { turns, tokens, deadlineMs } = EVAL_DEFAULTS.limits;
const LIMITS: readonly Flag[] = [
  ['--turns <n>', 'most model calls of one rollout', positive, turns],
  [
    '--rollout-tokens <n>',
    `most tokens one rollout may sample (default: ${tokens}, behind an API ${API_DEFAULTS.limits.tokens})`,
    positive,
  ],
];
const DEADLINE: Flag = [
  '--deadline <time>',
  `for one rollout, such as 90s or 10m (default: ${deadlineMs / 1000}s, behind an API ${API_DEFAULTS.limits.deadlineMs / 1000}s)`,
  duration,
];
const ISOLATION: Flag = [
  '--isolation <where>',
  'where rollouts run: none (in this process) or process (each in a sandboxed one) (default: as the entry says)',
  ['none', 'process'],
];
const TRAINED: Flag = [
  '--trained <what>',
  'all parameters, or adapters (LoRA) (default: all of a model below 20 million)',
  oneOf(['all', 'adapters'], ' or '),
];
const LORA_RANK: Flag = ['--lora-rank <n>', 'rank of the adapters (default: 16, at a Tinker server 32)', positive];
const LORA_ALPHA: Flag = ['--lora-alpha <x>', 'adapters count alpha / rank times (default: twice the rank)', number];
const SEED: Flag = ['--seed <n>', 'seed of everything random', natural];
const threads = (of: string): Flag => [
  '--threads <n>',
  `threads of ${of} (default: the cores, here ${EVAL_DEFAULTS.threads})`,
  positive,
];

export const STORE: Flag = [
  '--store <url>',
  'PostgreSQL database of the run, if it has one, with its password (default: the one in its run.json)',
];

/** What rollouts need. Each flag is the setting of the same name. */
const ROLLOUTS: readonly Flag[] = [
  ...MODEL,
  LORA_RANK,
  ['--call-tokens <n>', 'most tokens one model call may sample', positive],
  ...LIMITS,
  DEADLINE,
  ['--concurrency <n>', 'rollouts at once', positive],
  ISOLATION,
  [
    '--workflow-workers <n>',
    `processes of a workflow with isolation "process" (default: two a core, at most 16, here ${EVAL_DEFAULTS.workflowWorkers})`,
    positive,
  ],
  ['--grader-workers <n>', 'processes that grade', positive],
  ['--grader-deadline <time>', 'for one grading, such as 90s or 10m', duration, `${EVAL_DEFAULTS.graderDeadlineMs / 1000}s`],
  ['--price <in,out>', 'prices of a million prompt and sampled tokens, such as 0.15,0.60: then costs are estimated', prices],
  threads('the embedded policy'),
  SEED,
];

/** For train and eval. */
export const SHARED: readonly Flag[] = [
  ...FLOWS,
  [
    '--store <url>',
    'PostgreSQL database to keep rollouts in: postgres://user@host/database (default: a file in the run’s directory)',
  ],
  [
    '--workers <where>',
    'external: rollouts run in processes of trainyard worker, which share the store (default: in this process)',
    external,
  ],
  ['--held-out <file>', `tasks to evaluate on: ${FILES} (default: held-out.jsonl beside the entry)`],
  ...ROLLOUTS,
  ['--transcripts <n>', 'held-out conversations to show', natural],
  ['--tensorboard [dir]', 'write TensorBoard files while it goes (default: tensorboard in the run’s directory)'],
];

/** Other libraries call advantages a loss. */
function loss(text: string): string {
  if (ALGORITHM_NAMES.some((name) => name === text)) throw new InvalidArgumentError(`did you mean --algorithm ${text}?`);
  return oneOf(LOSS_NAMES)(text);
}

export const TRAIN: readonly Flag[] = [
  ['--tasks <file>', `tasks to train on: ${FILES} (default: train.jsonl beside the entry)`],
  ['--run <dir>', 'directory of this run (default: runs/<entry>-<time>)'],
  ['--resume <dir>', 'go on with the run in this directory, with its settings'],
  TRAINABLE,
  MIN_TASKS,
  ['--split <share>', 'hold out this share of the tasks, such as 0.1, instead of a file', share],
  ['--steps <n>', 'optimizer steps', positive],
  ['--group <n>', 'rollouts per group, at least 2', groupSize],
  ['--groups-per-step <n>', 'groups with signal per step', positive],
  ['--refill <n>', 'a step looks for them in at most so many times as many groups', positive],
  ['--staleness <k>', 'policy versions rollouts may run ahead of training; 0 waits', natural],
  ['--stale <rule>', `what happens to groups that are older than that: ${STALE_NAMES.join(', ')}`, oneOf(STALE_NAMES)],
  ['--algorithm <name>', `how rewards become advantages: ${ALGORITHM_NAMES.join(', ')}`, oneOf(ALGORITHM_NAMES)],
  ['--weighting <what>', `what counts alike in a step: ${WEIGHTING_NAMES.join(', ')}`, oneOf(WEIGHTING_NAMES, ' or ')],
  ['--turn-discount <x>', 'how much of what later turns earn counts for a turn, 0 to 1', share],
  ['--max-error-share <x>', 'end the run when more of the gradings fail, 0 to 1', share],
  TRAINED,
  LORA_ALPHA,
  ['--learning-rate <x>', 'of the first steps; it falls to a tenth', number],
  ['--temperature <x>', 'of training rollouts', number],
  ['--loss <name>', `${LOSS_NAMES.join(', ')} (default: ppo, with staleness decoupled_ppo)`, loss],
  ['--clip-low <x>', 'how far below 1 the ratio counts, with ppo, cispo and gspo', number],
  ['--clip-high <x>', 'how far above 1 the ratio counts, with ppo, cispo and gspo', number],
  ['--dual-clip <x>', 'with ppo: most times a negative advantage counts, above 1 (default: no bound)', number],
  ['--is-level <what>', 'with decoupled_ppo: an importance weight for each (default: token)', IS_LEVELS],
  ['--is-action <what>', 'with decoupled_ppo: what becomes of a weight out of bounds (default: truncate)', IS_ACTIONS],
  ['--is-cap <x>', 'with decoupled_ppo: largest importance weight (default: 5)', number],
  ['--is-floor <x>', 'with decoupled_ppo: smallest importance weight (default: none)', number],
  ['--dro-beta <x>', `with dro: pull to the policy that sampled (default: ${DRO_BETA})`, number],
  ['--dpo-beta <x>', `with dpo: pull to the policy training began with (default: ${DPO_BETA})`, number],
  ['--kl <x>', 'KL penalty against the policy training began with', number],
  ['--kl-estimator <name>', `how it is estimated: ${KL_ESTIMATOR_NAMES.join(', ')}`, oneOf(KL_ESTIMATOR_NAMES)],
  ['--entropy <x>', 'entropy bonus, for a policy that stops exploring', number],
  ['--overlong-buffer <n>', 'tokens below --rollout-tokens from which length costs reward (default: none)', positive],
  ['--overlong-factor <x>', `what a rollout loses at the limit (default: ${OVERLONG_FACTOR})`, number],
  ['--eval-every <n>', 'steps between evaluations on the way; 0 for none', natural],
  ['--eval-tasks <n>', 'held-out tasks of those evaluations', positive],
  ['--patience <n>', 'end after so many of them, in a row, no better than an earlier one; 0 never', natural],
  ['--checkpoint-every <n>', 'steps between checkpoints', positive],
  ['--max-time <time>', 'begin no step after 90s, 10m or 2h', duration],
  ['--max-tokens <n>', 'begin no step after so many sampled tokens', positive],
  ['--from <run>', 'train from the rollouts that this run kept, less what curate excludes, with its settings; makes no new ones'],
  ['--warm-start <from>', 'first teach the policy the successes of this run, or the conversations of this JSONL file'],
  ['--warm-start-epochs <n>', 'most passes over them', positive],
  ['--warm-start-learning-rate <x>', 'of teaching; it falls to a tenth', number],
];

export const SFT: readonly Flag[] = [
  ...MODEL.filter(([flag]) => !flag.startsWith('--api-key-env')),
  ['--run <dir>', 'directory of this run (default: runs/sft-<time>)'],
  ['--epochs <n>', 'most passes over the conversations', positive],
  ['--batch <n>', 'conversations per optimizer step', positive],
  ['--validation <share>', 'share of the tasks to leave out, to see when to end; 0 for none', share],
  ['--patience <n>', 'end after so many measurements, in a row, without a lower loss on those; 0 never', natural],
  ['--learning-rate <x>', 'of the first steps; it falls to a tenth', number],
  TRAINED,
  LORA_RANK,
  LORA_ALPHA,
  threads('the embedded policy'),
  SEED,
];

export const EVAL: readonly Flag[] = [
  ['--trainable <roles>', 'roles that the policy plays, as in training (default: those the workflow says)', roles],
  ['--n <k>', 'rollouts per task', positive, 1],
  ['--rows <list>', 'rows of the task file, such as 3,7,10-20 (default: all)'],
  ['--temperature <x>', 'of sampling (default: 0, or 1 with several rollouts per task)', temperature],
  CHECKPOINT,
  ['--run <dir>', 'directory of this evaluation (default: runs/eval-<entry>-<time>)'],
  ['--resume <dir>', 'go on with the evaluation in this directory, with its settings'],
  ['--retry-failed', 'with --resume: run failed rollouts and gradings again'],
  ['--max-error-share <x>', 'stop when more of the gradings fail, 0 to 1', share],
  ['--min-success <share>', 'exit with 4 if success is below this, from 0 to 1', share],
  ['--junit <file>', 'write a JUnit report, a test case for each task'],
  ['--report <file>', 'write a JSON report, with every task and rollout'],
];

export const TRY: readonly Flag[] = [
  ...FLOWS,
  ['--task <id>', 'id of the task, or its number in the file (default: the first)'],
  ['--tasks <file>', `file it is in: ${FILES} (default: held-out.jsonl beside the entry)`],
  ...MODEL,
  CHECKPOINT,
  ['--temperature <x>', 'of trainable roles', temperature, 1],
  ['--call-tokens <n>', 'most tokens one model call may sample', positive],
  ...LIMITS,
  TRAINABLE,
  ISOLATION,
  SEED,
];

export const REPLAY: readonly Flag[] = [
  ['--grade', 'only grade what was stored, with the grader as it is now'],
  ['--entry <file>', 'module to run instead of the run’s entry'],
  STORE,
];

export const PREFLIGHT: readonly Flag[] = [
  ...FLOWS,
  ['--tasks <file>', `tasks to train on: ${FILES} (default: train.jsonl beside the entry, if it exists)`],
  ['--held-out <file>', `tasks to evaluate on: ${FILES} (default: held-out.jsonl beside the entry, if it exists)`],
  MIN_TASKS,
  ['--probe', 'run a group of a few tasks, and say whether a training has anything to learn from; what follows is for it'],
  ...ROLLOUTS,
  TRAINABLE,
];

/** For the commands that a config file can say everything to. */
export const CONFIG: readonly Flag[] = [
  ['--config <file>', 'settings for this command (default: trainyard.config.ts, .mts, .js or .mjs, or trainyard.toml, if here)'],
  ['--no-config', 'take nothing from a config file'],
  ['--use <name>', 'take the settings of this run of the config file, on top of its others'],
  ['--print-config', 'show every setting and where it comes from, and run nothing'],
];

export const INIT: readonly Flag[] = [
  ['--client <name>', 'openai, anthropic, ai-sdk, openai-agents, langchain, strands, mastra or plain (default: asks; openai)'],
  ['--model-kind <kind>', 'where the model is (default: asks; local)', ['local', 'api', 'tinker']],
  ['--task <name>', 'task to start from (default: asks; shop)', ['shop', 'triage']],
  ['--here <file>', 'instead: say which lines of this agent to change, and add a config file and example tasks'],
  ['--yes', 'ask nothing'],
];

export const SERVE: readonly Flag[] = [
  ...MODEL,
  ['--host <address>', 'address to listen on; others than loopback need a token'],
  ['--port <n>', 'port to listen on (default: a free one)', port],
  ['--token <secret>', 'admin key; better in the environment, as TRAINYARD_TOKEN'],
  ['--run <dir>', 'directory to keep rollouts in (default: runs/serve-<time>)'],
  ['--store <url>', 'PostgreSQL database to keep them in: postgres://user@host/database (default: a file in that directory)'],
  ['--entry <file>', 'module that exports a grader, for trajectories of agent flows'],
  ['--tasks <file>', `tasks with the answers that it grades by: ${FILES}`],
  ['--group <n>', 'trajectories of a prompt that make a group, for /fetch_batch', positive],
  ['--max-groups <n>', 'groups that may wait to be fetched (default: any number)', positive],
  ['--group-timeout <time>', 'hand out a group with what it has after 90s, 10m or 2h (default: never)', duration],
  ['--temperature <x>', 'of sampling, whatever agents ask for (default: 1; behind an API, what they ask for)', temperature],
  threads('the embedded policy'),
  ['--seed <n>', 'seed of sampling', natural],
];

export const TINKER: readonly Flag[] = [
  ['--model <model>', 'as for train (default: the base policy that ships with Trainyard)'],
  ['--host <address>', 'address to listen on; others than loopback need a key'],
  ['--port <n>', 'port to listen on (default: a free one)', port],
  ['--api-key <key>', 'begins with tml-; better in the environment, as TINKER_API_KEY (default: the one kept in --state)'],
  ['--state <dir>', 'directory to keep saved weights in'],
  threads('each model'),
];

export const SKYRL: readonly Flag[] = [
  ['--model <model>', 'folder in Hugging Face layout with safetensors, or Owner/Name after trainyard model get'],
  ['--python <path>', 'a Python that has SkyRL (default: one of its own, made from PyPI in the cache folder)'],
  ['--cpu', 'run without a GPU, slowly, to try it out'],
  ['--port <n>', 'port to listen on (default: a free one)', port],
  ['--sequences <n>', 'sequences sampled at once', positive],
  ['--rows <n>', 'sequences trained on at once; fewer need less memory', positive],
  ['--lora-rank <n>', 'highest rank of an adapter', whole(1, 1024)],
  ['--context <n>', 'most tokens of a prompt and its answer', whole(32, 1_000_000)],
  ['--call-tokens <n>', 'most tokens of an answer without compiling again', positive],
];

export const PURPOSE: Flag = ['--purpose <which>', 'only rollouts of training, or of evaluations', ['train', 'eval']];

export const FILTER: Flag = ['--filter <expr>', 'only rollouts that pass, such as: reward<0.2 && turns>5 && tool~search'];

export const VIEW: readonly Flag[] = [
  ['--host <address>', 'address to listen on; others than loopback need a token'],
  ['--port <n>', 'port to listen on (default: a free one)', port],
  ['--token <token>', 'for links that work any number of times; better in the environment, as TRAINYARD_VIEW_TOKEN'],
  ['--export <file>', 'instead, write the page with what it shows to one HTML file'],
  FILTER,
  ['--limit <n>', 'rollouts of each run in that file with conversations and tokens, the latest', positive, 50],
  ['--rollout <id>', 'only this rollout in that file'],
  STORE,
];

export const BESIDE: Flag = ['--view', 'show the run in the browser while it goes on'];

export const EXPORT: readonly Flag[] = [
  ['--adapter <dir>', 'write the adapter as a PEFT folder'],
  ['--merged <dir>', 'write the whole model as a Hugging Face folder, with the adapter merged'],
  ['--dtype <format>', 'numbers of the whole model (default: as the base has them)', ['f32', 'f16', 'bf16']],
  ['--gguf-adapter <file>', 'write the adapter as a GGUF file, for llama.cpp and Ollama'],
  ['--base <model>', 'base model of the adapter (default: the one it was trained on)'],
  ['--format <name>', 'instead, write rollouts as training data', ['jsonl', 'parquet', 'trl', 'verl', 'openai']],
  ['--to <file>', 'file to write them to'],
  ['--tensorboard <dir>', 'instead, write the numbers of the run’s events as TensorBoard files'],
  PURPOSE,
  ['--only <which>', 'only such rollouts (default: by the format)', ['successes', 'graded', 'all']],
  FILTER,
  STORE,
];

export const WORKER: readonly Flag[] = [
  ['--store <url>', 'PostgreSQL database that the coordinator keeps its rollouts in: postgres://user@host/database'],
  ['--concurrency <n>', 'rollouts at once (default: 8)', positive],
  ['--run <id>', 'work only for the run with this id, as its run.json has it (default: the one that has been open for longest)'],
  ['--threads <n>', 'threads of the embedded policy', positive],
  ['--grace <seconds>', 'time for rollouts in hand to end after SIGTERM, before they are given back (default: 60)', positive],
];
