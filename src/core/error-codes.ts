/**
 * Every code that an error or a warning can carry: where it arose, how a command ends with it, what it means and what to do. The reference page,
 * `trainyard help CODE` and the type of each code are made from these rows; links in them are those of docs/reference/.
 */
export type Boundary = 'usage' | 'model' | 'workflow' | 'grader' | 'gateway' | 'engine' | 'trainer' | 'store' | 'run';

interface CodeEntry {
  readonly boundary: Boundary;
  /** Exit code of a command that this error ends: 2 if the user can fix the call or its files, else 1. */
  readonly exit: 1 | 2;
  readonly meaning: string;
  readonly remedy: string;
}

/** The rows of one boundary: most end a command with `exit`, some with another one. */
const rowOf =
  (boundary: Boundary, exit: CodeEntry['exit'] = 1) =>
  (meaning: string, remedy: string, own = exit): CodeEntry => ({ boundary, exit: own, meaning, remedy });
const usage = rowOf('usage', 2);
const run = rowOf('run');
const model = rowOf('model');
const workflow = rowOf('workflow');
const grader = rowOf('grader');
const gateway = rowOf('gateway');
const engine = rowOf('engine');
const trainer = rowOf('trainer');
const store = rowOf('store');

export const ERROR_CODES = {
  USAGE: usage(
    'A flag or argument is unknown, missing or malformed.',
    'Compare your command with the `--help` of the same command.',
  ),
  FILE_NOT_FOUND: usage(
    'A file or folder named on the command line does not exist.',
    'Check the spelling; relative paths start at the current directory.',
  ),
  DATASET_INVALID: usage(
    'A row is not a valid task, or a source of tasks cannot be read.',
    'Correct what the message names; [tasks](tasks.md) describes valid rows.',
  ),
  ENTRY_UNLOADABLE: usage(
    'The entry file cannot be imported: it has a syntax error, a package is missing, it throws while loading, or it is TypeScript that Node alone does not load and tsx is not installed.',
    'Fix what the message names, with file and line; `npm install --save-dev tsx` for enums, decorators, imports without extension and `tsconfig` paths ([which TypeScript loads](../guide/your-agent.md#which-typescript-loads)).',
  ),
  WORKFLOW_NOT_FOUND: usage(
    'The entry was imported but exports no workflow.',
    'Export the result of `defineWorkflow(async (ctx) => …)`.',
  ),
  WORKFLOW_AMBIGUOUS: usage(
    'The entry exports more than one workflow or more than one grader, so it is not clear which to use.',
    'Keep one of each per entry, and move the others to their own files.',
  ),
  WORKFLOW_INVALID: usage(
    "A workflow's definition is malformed: a role is neither `{}` nor `{ default: a model }`, `trainable` names no role, or an option has an unknown name or value.",
    'Correct what the message names.',
  ),
  WORKFLOW_NOT_ASYNC: usage(
    'A workflow is not an async function, so it may return before its model calls do.',
    'Add `async`, or wrap it: `defineWorkflow(async (ctx) => yours(ctx))`.',
  ),
  WORKFLOW_INIT_FAILED: usage(
    "A workflow class could not be constructed, or the workflow's `setup` threw.",
    'Fix what it throws; nothing was run.',
  ),
  CONFIG_INVALID: usage(
    'A config lacks a field or has one of the wrong type, or the entry exports several configs.',
    'Keep one config per entry file, and give it the fields that the message names.',
  ),
  GRADER_INVALID: usage(
    "A grader's definition is malformed: it has no `grade`, or it has unknown or impossible options; or an export named `grader` is a plain function.",
    'Correct what the message names; [graders](graders.md) lists what graders take.',
  ),
  GRADER_INIT_FAILED: usage(
    'A grader class could not be constructed, or an environment variable that the grader needs is not set.',
    'Fix what its constructor throws; set the variable where you start the run.',
  ),
  GRADER_NOT_FOUND: usage(
    'The entry exports no grader, and its workflow never returns a reward itself (the Osmosis shape).',
    'Export a grader: `defineGrader(({ task, messages }) => …)`, or a class.',
  ),
  RUN_LOCKED: run('Another process is using the run directory.', 'Wait for it or stop it, or name another directory.'),
  RUN_NOT_EMPTY: usage(
    'The run directory already holds a run; nothing in it was touched.',
    'Continue that run with `--resume`, or name another directory.',
  ),
  WORKER_MISMATCH: usage(
    'The code, the data beside it, the packages, the release or the kernels of a worker are not those of the run that it would work for. Nothing was run.',
    'Give the worker the same files, packages and release as the coordinator ([what is compared](../guide/many-machines.md#what-is-checked)).',
  ),
  RESUME_IMPOSSIBLE: usage(
    'The directory holds no run, or the run cannot continue with these settings or tasks.',
    'Leave out what changed, or start a new run from one of its checkpoints with `--model`.',
  ),
  MODEL_INVALID: model(
    'The model folder lacks a file, or its architecture is not supported.',
    'Compare the folder with what the message expects; use a supported model.',
    2,
  ),
  DOWNLOAD_FAILED: model(
    '`trainyard model get` could not download a model, or a file is not the one that the hub lists. Nothing incomplete was left under its name.',
    'Do what the hint says; typing the same command again continues where it stopped.',
  ),
  SAFETENSORS_INVALID: model(
    'A safetensors file is truncated or malformed.',
    'Download or copy the file again; for a checkpoint, use an earlier one.',
  ),
  CHECKPOINT_MISMATCH: model(
    'A checkpoint belongs to another model: its tensors have other names or shapes.',
    'Load it with the model it was trained from.',
  ),
  TOKENIZER_INVALID: model(
    '`tokenizer.json` or the chat template is missing or unusable, or the template does not end.',
    "Take both from the same model as the weights; correct the template's loops.",
    2,
  ),
  RESULT_REFUSED: workflow(
    'What a worker returned is not a result of the rollout that it was given, or cannot have been sampled: the message says which worker and what. The rollout runs again; after three such results it is stored as failed.',
    'Look at that worker: its engine, its release, and who else writes to the database.',
  ),
  WORKER_LOST: workflow(
    'Three workers began the rollout, and each was lost before it ended. The rollout is stored as failed, with the log of its attempts.',
    'Look at the workers that the message names, and at their memory: an agent that exhausts it, or ends its own process, takes them down.',
  ),
  WORKFLOW_FAILED: workflow(
    'The workflow threw; the message is that of the error it threw.',
    'Fix the cause in your agent; other rollouts are not affected. `EROFS` under isolation: see [where may it write](isolation.md#the-sandbox).',
  ),
  WORKFLOW_BAD_RESULT: workflow(
    'The workflow returned something other than nothing, a string or a result object.',
    'Return nothing, a string, or an object with `output`, `reward`, `success`, `metadata`, `metrics`; `output` and `metadata` must be [plain JSON](workflows.md#what-it-returns).',
  ),
  REWARD_MISSING: workflow(
    'The workflow returned no reward and the entry exports no grader.',
    'Export a grader, or return `{ reward }`.',
    2,
  ),
  NO_ROLLOUT: workflow(
    'Code used something that belongs to a rollout while no rollout was running.',
    "Use it inside the workflow's `run`.",
  ),
  DEFAULT_MODEL_FAILED: workflow(
    'The model that plays an untrained role could not be reached, returned an error or redirected the call.',
    'Check its base URL, key and name; redirects are not followed.',
  ),
  FAILURE_BUDGET: workflow(
    'Too many rollouts failed, and the run stopped instead of spending more.',
    'Look at the failures that the message counts; running a single task usually shows the same error.',
  ),
  POLICY_BYPASSED: workflow(
    'No rollout made a model call through the gateway, so there is nothing to train on.',
    'Give your client the `baseURL` and `apiKey` of `ctx.model()`, and look for a client that still uses its own.',
  ),
  NO_SIGNAL: run(
    "Before the first step, there was nothing to learn from, try after try: all rollouts of each group had the same reward or none, or the workflow's `accepts` refused the groups; or no role is trainable. The message says which, and what the policy answered and earned.",
    'Do what the hint says. The shipped model knows only the jobs of `examples/shop`, `examples/triage` and `examples/desk`: for others, [measure another model](../guide/real-models.md) first. Else use tasks that the policy solves sometimes but not always, a grader with more than two values, or larger groups.',
  ),
  GRADER_FAILED: grader(
    'The grader threw or its process crashed; the rollout has no reward and is not trained.',
    'Fix the cause in the grader; if a bad answer should score 0, return 0 yourself.',
  ),
  GRADER_TIMEOUT: grader(
    'The grader did not finish before its deadline; the rollout has no reward and is not trained.',
    'Find what it waits for, and give its own calls a shorter limit.',
  ),
  GRADER_BAD_REWARD: grader(
    'The grader returned neither a finite number nor an object with a finite `value` and only the fields of a reward; or it returned a reward beyond 1e30, or one for a turn, thread or role that the rollout does not have.',
    'Return a number; look for divisions by zero and missing `return`s.',
  ),
  GRADER_UNSCORABLE: grader(
    'The grader says that this rollout cannot be scored (`unscorable(why)`), for example because the sandbox is gone or the judge does not answer.',
    'Read the reason; a run ends when too many gradings fail.',
  ),
  SANDBOX_MISSING: grader(
    'This machine has no sandbox, or no Python to run in it.',
    'Install bubblewrap (`apt-get install bubblewrap`), and allow user namespaces if the message asks for it.',
    2,
  ),
  SANDBOX_FAILED: grader(
    'A sandbox could not be set up this time. Nothing ran in it.',
    'Look at the reason in the message: most often the system ran out of processes, memory or mounts.',
  ),
  GRADER_BUDGET: grader(
    'Too many gradings failed, and the run stopped.',
    'Look at the reasons that the message counts, and fix the grader, or allow more with `--max-error-share`.',
  ),
  REQUEST_INVALID: gateway(
    'A model request is malformed or asks for something unsupported.',
    'Change the request as the message says; leave out the parameter that it names.',
  ),
  REQUEST_CONFLICT: gateway(
    'An Idempotency-Key was reused for a different request.',
    'Use a new key for each request, and the same key only to repeat one.',
  ),
  CAPABILITY_MISSING: gateway('A key is valid, but not for this route.', 'Use a key with the capability that the route needs.'),
  SESSION_UNKNOWN: gateway(
    'A model request carries no key, or a key that belongs to no open rollout.',
    'Take `baseURL` and `apiKey` from `ctx.model()` inside each rollout; never keep them from an earlier one.',
  ),
  SESSION_SEALED: gateway(
    'A model request came after its rollout ended; it was not answered and not recorded.',
    'Await every model call before the workflow returns.',
  ),
  LIMIT_REACHED: gateway(
    'The rollout used up its turns, tokens or bytes; what it did until then is kept and graded.',
    'Let the agent stop earlier, or raise the limit if the task needs more.',
  ),
  CONTEXT_OVERFLOW: engine(
    "The conversation leaves no room for a sampled token in the model's context.",
    'Shorten prompts and tool results, give a larger `--context` if you gave one, or use a model with a longer context.',
  ),
  ENGINE_BUSY: engine(
    'The engine or the rollout has too many calls in progress.',
    'Wait and try again, as stock clients do by themselves; or make fewer calls at once.',
  ),
  ENGINE_FAILED: engine(
    'The engine could not sample.',
    'Read the cause. For a remote engine or a model behind an API, check that it is reachable, accepts the key and serves this model. If a log-probability is not finite, use a smaller learning rate.',
  ),
  POLICY_UNREACHABLE: engine(
    'The policy server cannot be reached or does not answer.',
    'Check `TINKER_BASE_URL`, the server and the network; once the server answers, continue the run with `--resume`.',
  ),
  POLICY_REFUSED: engine(
    'The policy server refused a request.',
    "Read the message, which is the server's: a wrong `TINKER_API_KEY`, an unknown base model, a quota. Of a model behind an API: check `--base-url`, `--model` and the variable that `--api-key-env` names.",
    2,
  ),
  POLICY_GARBLED: engine(
    'The policy server returned something that cannot be used.',
    'Check that it is a Tinker server and whether there is a proxy in between. The message shows what was found.',
  ),
  POLICY_DISAGREES: trainer(
    'Engine and trainer give the same tokens, under the same weights, different log-probabilities. At staleness 0 the run ends before the step is kept; above 0, this is a warning.',
    'The engine serves other weights than those in training, or reports other log-probabilities than it sampled with (another temperature, another model, a proxy). [Training](training.md#does-the-engine-sample-what-is-trained) says how the bound is found.',
  ),
  POLICY_LOST: engine(
    'The policy server no longer has the weights in training.',
    'The server was restarted, or it dropped the weights. A run continues by itself from the last saved state; a program of your own has to load that state again.',
  ),
  SAMPLE_REFUSED: trainer(
    'A sample cannot be trained as it was sampled; training it anyway would silently give wrong gradients.',
    'Follow the message: it names the setting or the record that does not match. A stored rollout would be refused at every resume: leave it out with the `trainyard curate` command that the message has.',
  ),
  TRAINER_FAILED: trainer(
    'The trainer could not take a step; the last committed policy version is intact.',
    'Read the cause. If the loss, a gradient or the weights are not finite, use a smaller learning rate.',
  ),
  STORE_CONFLICT: store(
    'A record contradicts one that is already stored: another trajectory under the same id, or a step that does not follow the last.',
    'Do not let two runs write to one store; start a new run directory.',
  ),
  STORE_FORMAT: store(
    'The store file is damaged or was written by another format version.',
    'Open it with the version that wrote it, or restore it from a copy.',
  ),
  STORE_FAILED: store(
    'The store could not write; everything that was acknowledged is on disk.',
    'Check the free space and permissions of the run directory.',
  ),
  CANCELLED: run('The work was cancelled, by a signal or by the caller.', 'Nothing is broken; start it again when you want to.'),
};

export type ErrorCode = keyof typeof ERROR_CODES;

/** A warning ends nothing. The first failed rollout and the first failed grading of each code are reported as warnings too, under their own code. */
export const WARNINGS = {
  DONE_BEFORE: 'The same command has run before; its result is shown, and nothing was done.',
  LEASE_LOST: 'A worker was away for so long that its rollout was given to another; what it computed is thrown away.',
  ROLLOUT_RETURNED: 'A worker gave a rollout back to the queue, for the reason in the message; another attempt follows.',
  TAUGHT_NOTHING: 'Teaching made the policy worse on conversations that were left out, so the model stays as it was.',
  STRAY_REJECTION: 'A promise that the workflow did not await rejected, or one of its timers threw. Await every model call.',
  UNKILLABLE_GRADER: 'The grader was given as a value and runs inside this process; if it loops forever, so does the run.',
  TEMPLATE_WITHOUT_TOOLS:
    "The model's chat template leaves out tools, or tool calls and their results; they are written in a form of Trainyard's own ([templates](gateway.md#without-tools)).",
  EVENT_LOOP_BLOCKED:
    'Something in the workflow computed or waited without `await`, and all rollouts stood still; the message names the place ([when something blocks](isolation.md#when-something-blocks)).',
  INTERRUPTED:
    'The command received Ctrl-C, SIGTERM or SIGHUP, or the reader of its output has closed. Training ends after the current step, an evaluation at once; after SIGTERM or SIGHUP an evaluation finishes the rollouts in flight. A second signal exits at once.',
  CHECKPOINT_UNREADABLE: 'The resumed run goes back to an earlier checkpoint; the steps after it are computed again.',
  NOT_REPRODUCED:
    'A step that was computed again gave different numbers, because the processor type or the program changed. The run continues, but its final result will not be byte-identical to that of the undisturbed run.',
  OTHER_KERNELS: 'The machine lacks the kernels that the run started with; the consequence is the same.',
  POLICY_SERVER:
    "The policy server does not answer, or answers again after an outage; requests are retried in between. Or the run's sizes are not those that the server is compiled for; or the server does something otherwise than a run asks, which cannot be checked or changed.",
  POLICY_RESTORED: 'The policy server lost the weights in training, and they were restored to the last committed step.',
  LABEL_IN_PROMPT: "A task's answer is in a place that the agent can read ([tasks](tasks.md#warnings)).",
  LABEL_IN_METADATA: "A task's answer is in a place that the agent can read ([tasks](tasks.md#warnings)).",
  LABEL_IN_ID: "A task's answer is in a place that the agent can read ([tasks](tasks.md#warnings)).",
  DUPLICATE_TASKS: 'Some rows ask the same as earlier rows.',
  HELD_OUT_SEEN: 'Some held-out tasks ask the same as training tasks.',
  LEFT_OUT: 'Rollouts of another run that `train --from` does not train.',
  GRADER_ENV_MISSING:
    'The grader needs an environment variable that is not set in the environment where the entry was inspected; a run there would not start.',
  NO_ANSWERS: 'There is a grader, but tasks have no answer.',
  ANSWERS_UNUSED: 'Tasks have answers, but there is no grader.',
  NUMBERS_ARE_TEXTS: 'The answers in a CSV file look like numbers, but are strings ([tasks](tasks.md#warnings)).',
  WAITING_FOR_POLICY:
    "The policy has not answered the first call of this run yet: a server loads or compiles the model, or a large embedded model reads long prompts; the wait counts towards no rollout's deadline.",
  SIDE_CALL:
    'A model call looks like one that a client makes beside its conversation, for a title, a topic or a memory, and is not trained ([why](../decisions/0010-forks-have-causes.md)).',
  WITHOUT_EFFECT:
    'An agent asked for what changes what it can do and has no effect here: tools that the policy is never shown, because a provider runs them (`web_search`), they are no functions or are loaded later; or one call at a time. Each is told once, by name.',
  DATABASE_RIGHTS:
    "A coordinator's database user is a superuser, the role of workers is missing or may do more than workers need, or a worker logs in as somebody who may change rewards ([roles](../guide/many-machines.md#roles-and-passwords)).",
  WAITING_FOR_WORKERS: 'No worker has returned anything for 15 s and more.',
  NO_STEPS:
    'A flow called `/generate` and submitted no step, so nothing of its rollout is trained ([steps](agent-flow.md#submit_steps)).',
  PRINTS_KEPT: 'A workflow printed something; `train` and `eval` keep it with the rollout and do not show it. Said once.',
  SAME_ROLLOUTS: 'Several rollouts per task were requested at temperature 0, where they are most likely all the same.',
  BELOW_MIN_SUCCESS: 'An evaluation scored below `--min-success`; the command exits with 4.',
  ENTRY_CHANGED:
    'The entry file, or a file beside it that it imports, has changed since the run started; the message names each. Rollouts made with the old files are kept and may be trained on.',
} as const satisfies Record<string, string>;

/** What a warning can carry: also the code of what failed. */
export type WarningCode = keyof typeof WARNINGS | ErrorCode;
