/**
 * How each command of README.md, the guide and the pages on other systems is executed by commands.full.test.ts. The first row whose pattern matches decides; a command
 * without a row fails the test, and so does a row without a command.
 *
 * Commands are written here as `trainyard …`, without comments, however the page calls the program. Models of the hub and servers are stand-ins on
 * this machine: what is downloaded is the model that ships, under the name that was asked for; the API is a `trainyard serve`, the Tinker server a
 * `trainyard tinker`.
 */
export type Way =
  /** In a scratch folder, with these flags added; it must end with 0. */
  | { readonly kind: 'executed'; readonly with: string }
  /** It must print this; then it gets Ctrl-C. */
  | { readonly kind: 'served'; readonly with: string; readonly until: string }
  /** By the real command line: verb, arguments and flags must be right. */
  | { readonly kind: 'parsed'; readonly why: string }
  /** Instead of a download: a project gets this repository as its package. */
  | { readonly kind: 'linked' }
  /** Not a command of this program. */
  | { readonly kind: 'left'; readonly why: string };

const executed = (flags = ''): Way => ({ kind: 'executed', with: flags });
const served = (flags: string, until = 'http://'): Way => ({ kind: 'served', with: flags, until });
const parsed = (why: string): Way => ({ kind: 'parsed', why });
const left = (why: string): Way => ({ kind: 'left', why });

const FEW = '--steps 1 --set groups-per-step=2 --set eval-every=0';
/** The shop's 500 held-out tasks would take longer than the step. */
const FEW_SHOP = `${FEW} --held-out few/shop.jsonl`;

export const TABLE: readonly (readonly [RegExp, Way])[] = [
  [/^npm (ci|test|pack)$/, left('installs, tests and packs this repository; the tests are what runs here')],
  [/^npm install \.\.\/trainyard\//, left('test/packed installs the package')],
  [/^npm install$/, { kind: 'linked' }],
  [/^npm install --save-dev tsx$/, left('test/packages/typescript installs it and loads entries with it')],
  [/^npm install @opentelemetry/, left('the SDK of the tracing tool; src/integrations/opentelemetry.test.ts registers a tracer')],
  [/^trainyard .*--store postgres:/, parsed('needs that database; test/workers and test/cli run such commands with a real one')],
  [/^(llama-server|ollama|node|npx node|tensorboard|pip|python|psql|mkdir|openssl) /, left('another program')],
  [/^docker /, left('no Docker here; test/deploy checks the files')],
  [/^trainyard train examples\/shop\/agent\.ts --transcripts/, executed(FEW_SHOP)],
  [/^trainyard skyrl /, parsed('needs an NVIDIA GPU, and installs several GB')],
  [/^trainyard .*bartowski\//, parsed('the stand-in has no GGUF files; src/engines/model-download.test.ts downloads them')],
  [/^trainyard model get /, executed()],
  [/^trainyard tinker /, served('--port 0 --threads 1')],
  [/^trainyard init /, executed('--yes')],
  [/^trainyard view .*--export/, executed()],
  [/^trainyard view /, served('')],
  [/^trainyard replay /, parsed('the page shows a rollout of an agent that was changed; test/cli/replay.full.test.ts does that')],
  [/^trainyard train --resume /, executed('--steps 2')],
  [/^trainyard train .*examples\/(shop|tuner\/math)/, executed(FEW_SHOP)],
  [/^trainyard train .*werewolves/, executed('--steps 1 --group 2 --set groups-per-step=1 --set refill=1 --set eval-every=0')],
  [/^trainyard train /, executed(FEW)],
  [/^trainyard sft /, executed('--epochs 1')],
  [/^trainyard (eval|try|preflight)( |$)/, executed()],
  [/^trainyard (diff|show|export) /, executed()],
];

/** What a page's commands need that the reader has by then: commands that are executed before them. */
export const BEFORE: Readonly<Record<string, readonly string[]>> = {
  'docs/guide/train.md': [
    'trainyard train my-agent.ts --run runs/shop-20261115-081703',
    'trainyard model get HuggingFaceTB/SmolLM2-135M-Instruct',
  ],
  'docs/guide/take-it-out.md': [
    'trainyard model get HuggingFaceTB/SmolLM2-135M-Instruct',
    'trainyard train my-agent.ts --model HuggingFaceTB/SmolLM2-135M-Instruct --set trained=adapters --run runs/mine',
    'trainyard eval my-agent.ts --engine openai --model gpt-4o-mini --run runs/gpt',
    'trainyard train my-agent.ts --run runs/my-run',
  ],
  'docs/guide/troubleshooting.md': ['trainyard train my-agent.ts --run runs/mine'],
};

/** Said on a page for a real model or a real task file; here both are small. */
export const SMALLER: readonly (readonly [RegExp, string])[] = [
  [/context([ =])1024/, 'context$1256'],
  [/--rows 1-200/, '--rows 1-24'],
  [/--set base-model=Qwen\/Qwen3-8B/, ''],
  [/--adapter out\/adapter --base/, '--adapter out/named --base'],
  [/(--held-out )examples\/(\w+)\/held-out\.jsonl/, '$1few/$2.jsonl'],
];
