/**
 * The program of a workflow's process: imports the user's module, sets the workflow up, then runs one rollout after another. Arguments: the
 * module's URL, the export's name, the policy's folder, and for a flow chosen by name what makes it. Code that a rollout leaves running
 * goes on during the next one.
 */
import { inspect } from 'node:util';
import { catchPrints, currentRollout, endPrints, runInRollout } from '../../core/context.ts';
import type { SeatOptions, Workflow, WorkflowContext, WorkflowResult } from '../../core/contracts.ts';
import { moduleOf } from '../../core/define.ts';
import { boundary, messageOf, TrainyardError } from '../../core/errors.ts';
import { exactJson } from '../../core/json.ts';
import type { Purpose, TaskView } from '../../core/types.ts';
import { type FetchIn, httpModel, inThread, type ModelAddress } from '../../gateway/chat-client.ts';
import { agentEnvironment } from '../../processes/agent-process.ts';
import { importedModule, namesOf, type ServedCall, serveCalls } from '../../processes/serve-calls.ts';
import { announcedBy } from '../../processes/user-modules.ts';
import { workflowsOf } from '../../rollout/discovery.ts';
import { Rejection, workflowContext } from '../../rollout/rollout-context.ts';
import { loadRenderer, renderAndDecode } from '../../tokens/renderer.ts';

/** All that the process gets: no answer, no task file, no keys of the run, no store. */
export interface RolloutOrder {
  readonly task: TaskView;
  readonly rolloutId: string;
  readonly groupId: string;
  readonly purpose: Purpose;
  readonly seed: number;
  /** The rollout's folder, created only if it asks for one. */
  readonly folder: string | null;
  /** One per role that the rollout may use: the declared ones and `default`. */
  readonly addresses: readonly ModelAddress[];
  /** What the workflow's attached part hands over, such as a flow's key. */
  readonly handed: unknown;
}

export type RolloutEnding =
  | { readonly kind: 'returned'; readonly result: unknown }
  | { readonly kind: 'rejected'; readonly reason: string };

// Written too: if this process dies, the rollout fails with its last output.
catchPrints(true);

// As in the run's own process: report an unawaited failure, but end neither this rollout nor the next one.
process.on('unhandledRejection', stray);
process.on('uncaughtException', (thrown) => {
  stray(thrown);
  if (currentRollout() === undefined) process.exit(1);
});

await serveCalls(async (url = '', exportName = '', folder = '', by?: string, ...args: readonly string[]) => {
  const workflow = by === undefined ? await exportedBy(url, exportName) : await madeBy(by, args);
  await boundary('WORKFLOW_INIT_FAILED', `the setup of workflow ${workflow.name} failed`, async () => workflow.setup?.());
  const renderer = workflow.usesTokens && folder !== '' ? await loadRenderer(folder) : undefined;
  const tokens = renderer && renderAndDecode(() => renderer);
  return {
    answer: (order, call) => run(workflow, tokens, order as RolloutOrder, call),
    ...(workflow.teardown === undefined ? {} : { close: async () => workflow.teardown?.() }),
  };
});

async function exportedBy(url: string, exportName: string): Promise<Workflow> {
  const exports = await importedModule(url, 'workflow', 'ENTRY_UNLOADABLE');
  const workflows = await workflowsOf(moduleOf(exports, announcedBy(url)));
  const exported = workflows.find(({ name }) => name === exportName);
  if (exported !== undefined) return exported.value;
  const found = `export ${JSON.stringify(exportName)} of ${url} is not a workflow; it exports ${namesOf(exports)}`;
  throw new TrainyardError('WORKFLOW_NOT_FOUND', found);
}

async function madeBy(url: string, args: readonly string[]): Promise<Workflow> {
  const { workflowNamed } = (await import(url)) as { workflowNamed(...given: readonly string[]): Promise<Workflow> };
  return await workflowNamed(...args);
}

function stray(thrown: unknown): void {
  process.stderr.write(`${inspect(thrown)}\n`);
  currentRollout()?.log(`not awaited, and failed: ${messageOf(thrown)}`);
}

async function run(
  workflow: Workflow,
  tokens: ReturnType<typeof renderAndDecode> | undefined,
  order: RolloutOrder,
  { signal, note }: ServedCall,
): Promise<RolloutEnding> {
  const { folder, addresses, handed, ...own } = order;
  const model: WorkflowContext['model'] = (role = 'default', options) => {
    const check = seatCheck(workflow, role, options);
    const fetchIn: FetchIn = (thread) => async (input, init) => {
      check();
      return await inThread(role)(thread)(input, init);
    };
    return httpModel(addressOf(addresses, role), fetchIn, undefined, tokens);
  };
  const ctx = workflowContext(workflow, { ...own, signal, model }, folder, note);
  enterEnvironment(ctx, agentEnvironment(addressOf(addresses, 'default')));
  try {
    const ran = runInRollout(ctx, () => workflow.run(ctx, handed));
    return { kind: 'returned', result: sendable(await ran.finally(() => endPrints(ctx))) };
  } catch (thrown) {
    if (thrown instanceof Rejection) return { kind: 'rejected', reason: thrown.message };
    throw thrown;
  }
}

const DECLARED =
  'in defineWorkflow: roles: { name: { default: … } }, trainable: […]; in a tuner’s Workflow: static roles = { … }';

/** What a call may say of its role is what the run's process knows: the gateway asks nothing here. The check is for each call. */
function seatCheck({ roles, othersTrainable = true }: Workflow, role: string, options: SeatOptions = {}): () => void {
  const declared = Object.hasOwn(roles, role) ? roles[role] : undefined;
  const refuse = (what: string): never => {
    const found = `role ${JSON.stringify(role)} was given ${what} in a process of its own, where the gateway cannot ask it`;
    throw new TrainyardError('WORKFLOW_INVALID', found, `declare it ${DECLARED}`);
  };
  if (options.default !== undefined && declared?.default === undefined) refuse('a default model');
  return () => {
    const isTrained = declared?.trainable ?? othersTrainable;
    if ((options.trainable?.() ?? isTrained) !== isTrained) refuse(`trainable: ${!isTrained}`);
  };
}

function addressOf(addresses: RolloutOrder['addresses'], role: string): ModelAddress {
  const address = addresses.find((one) => one.role === role);
  if (address !== undefined) return address;
  const known = addresses.map((one) => one.role).join(', ');
  throw new TrainyardError(
    'WORKFLOW_INVALID',
    `the workflow does not declare role ${JSON.stringify(role)}, and its process has keys for ${known} only`,
    `declare it ${DECLARED}`,
  );
}

/** Converts values to JSON here, where their own `toJSON` still exists. */
function sendable(returned: unknown): unknown {
  if (typeof returned === 'string') return exactJson(returned, 'its text');
  if (typeof returned !== 'object' || returned === null || Array.isArray(returned)) return returned;
  const { output, metadata, ...rest } = returned as WorkflowResult;
  return {
    ...rest,
    ...(output === undefined ? {} : { output: exactJson(output, 'output') }),
    ...(metadata === undefined ? {} : { metadata: exactJson(metadata, 'metadata') }),
  };
}

// Code left over from an earlier rollout must read that rollout's variables, whose key is dead: with the current ones it would add turns to
// another rollout's conversation.

const variablesOf = new WeakMap<WorkflowContext, Readonly<Record<string, string>>>();
let entered: WorkflowContext | undefined;

function enterEnvironment(ctx: WorkflowContext, variables: Readonly<Record<string, string>>): void {
  if (entered === undefined) {
    // Needs its own setter: Node refuses the property definition that a proxy's default one makes on `process.env`.
    process.env = new Proxy(process.env, { get: lookedUp, set: (whole, name, value) => Reflect.set(whole, name, value) });
  }
  entered = ctx;
  variablesOf.set(ctx, variables);
  Object.assign(process.env, variables);
}

function lookedUp(whole: NodeJS.ProcessEnv, name: string | symbol): unknown {
  const asking = currentRollout();
  const own = asking === undefined || asking === entered ? undefined : variablesOf.get(asking);
  return own !== undefined && typeof name === 'string' && Object.hasOwn(own, name) ? own[name] : Reflect.get(whole, name);
}
