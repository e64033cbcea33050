/**
 * Who an example and an integration talks to: the policy, and nobody else. Every example is run once with the network closed and the keys of
 * every service set; what it tries to reach is written down.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ROOT, useScratch } from '../cli/command.ts';
import { runClosed, script } from '../fixtures/closed-network/run.ts';
import { hasSandbox, needsSandbox } from '../fixtures/sandbox.ts';

const OPENAI = ['api.openai.com:443'];
const EXAMPLES = join(ROOT, 'examples');
const CLI = join(ROOT, 'src/cli/main.ts');

const home = useScratch();

/** Examples by the folder of their tasks. */
const BY_TASKS: Readonly<Record<string, readonly string[]>> = {
  shop: [
    ...['agent-flow/gsm8k-agent-flow.ts', 'agent-flow/multi-step.ts', 'frameworks/ai-sdk.ts', 'frameworks/langchain.ts'],
    ...['frameworks/openai-agents.ts', 'frameworks/strands.ts', 'graders/arithmetic.ts', 'osmosis/tools.ts', 'shop/agent.ts'],
    ...['shop/composed.ts', 'tuner/math-agent-ai-sdk.ts', 'tuner/math-agent-openai-agents.ts'],
  ],
  triage: [
    ...['agent-flow/process-agent-flow.ts', 'agent-flow/registered.ts', 'agent-flow/single-step.ts', 'areal/agent.ts'],
    ...['areal/async-workflow.ts', 'areal/reward-wrapper.ts', 'osmosis/custom-config.ts', 'osmosis/minimal.ts'],
    ...['osmosis/server.ts', 'osmosis/simple-openai.ts', 'osmosis/simple-strands.ts', 'osmosis/two-agents.ts'],
    ...['triage/agent.ts', 'tuner/simple-agent.ts'],
  ],
  desk: ['desk/agent.ts', 'tuner/advanced-roles.ts'],
  'tuner/werewolves': ['tuner/werewolves/agent.ts'],
  'graders/code.jsonl': ['graders/code.ts'],
  'graders/countdown.jsonl': ['graders/countdown.ts'],
  'llm-shop': ['llm-shop/agent.ts'],
};
const CASES = Object.entries(BY_TASKS).flatMap(([tasks, examples]) => examples.map((example) => [example, tasks] as const));
const FLOWS = join(EXAMPLES, 'agent-flow/flows.yaml');
/** How an example is named that is not an entry by itself. */
const BY_NAME: Readonly<Record<string, readonly string[]>> = {
  'agent-flow/gsm8k-agent-flow.ts': ['--flow', 'blackbox_gsm8k_agent', '--flows', FLOWS],
  'agent-flow/process-agent-flow.ts': ['--flow', 'process_agent', '--flows', FLOWS],
  'agent-flow/registered.ts': [join(EXAMPLES, 'agent-flow/registered.ts'), '--flow', 'my_agent_flow'],
};
/** What examples import. */
const PARTS = ['agent-flow/shop.ts', 'osmosis/queue-grader.ts', 'tuner/final-result.ts', 'tuner/werewolves/opponents.ts'];

const tryOnce = (entry: readonly string[], tasks: string, env?: Record<string, string>) =>
  runClosed([CLI, 'try', ...entry, '--tasks', tasks, '--turns', '200'], env);

describe('an example reaches nobody but the policy', { concurrent: true }, () => {
  it.each(CASES)('%s', async (example, folder) => {
    const tasks = join(EXAMPLES, folder.endsWith('.jsonl') ? folder : `${folder}/held-out.jsonl`);
    const { code, output, reached } = await tryOnce(BY_NAME[example] ?? [join(EXAMPLES, example)], tasks);
    expect({ code, reached }, output).toEqual({ code: 0, reached: [] });
    expect(output).toMatch(/tokens/);
  });

  it('loop.ts, which tries, learns and evaluates on a page of public pieces', async () => {
    const { code, output, reached } = await runClosed([join(EXAMPLES, 'loop.ts'), '1']);
    expect({ code, reached }).toEqual({ code: 0, reached: [] });
    expect(output).toMatch(
      /^held-out success before: \d+\.\d %\nstep 1: reward 0\.\d\d, learned from \d*[1-9]\d* of 64 rollouts\nheld-out success after: \d+\.\d %\n$/,
    );
    const text = readFileSync(join(EXAMPLES, 'loop.ts'), 'utf8');
    const imported = [...text.matchAll(/from '([^']+)';/g)].map(([, from]) => from);
    expect(imported).toEqual(['node:url', 'trainyard', 'trainyard/loop', './triage/agent.ts']);
    expect(text.split('\n').length).toBeLessThanOrEqual(200);
  });
});

it('every example is among them', () => {
  const files = readdirSync(EXAMPLES, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.ts'));
  const written = files.filter((file) => /from 'trainyard/.test(readFileSync(join(EXAMPLES, file), 'utf8')));
  expect(written.toSorted()).toEqual([...CASES.map(([example]) => example), ...PARTS, 'loop.ts'].toSorted());
});

describe('tracing of the OpenAI Agents SDK', { concurrent: true }, () => {
  const tracing = (...imports: readonly string[]): readonly string[] =>
    script(`import { withTrace } from '@openai/agents'; ${imports.map((from) => `import '${from}';`).join(' ')}
      await withTrace('a conversation', async () => {});`);
  /** Its agent sends its traces before the rollout ends, and does not try for long. */
  const entry = (name: string, options: string, more = '') =>
    home.write(
      name,
      `import { BatchTraceProcessor, getGlobalTraceProvider, OpenAITracingExporter, setTraceProcessors, setTracingDisabled, withTrace } from '@openai/agents';
       import { defineGrader, defineWorkflow } from 'trainyard';
       setTraceProcessors([new BatchTraceProcessor(new OpenAITracingExporter({ baseDelay: 1 }))]);
       ${more}
       export default defineWorkflow({ ${options} async run(ctx) {
         await withTrace('a conversation', () => ctx.model().generate({ messages: ctx.prompt }));
         await getGlobalTraceProvider().forceFlush();
         ctx.log('reached: ' + globalThis.reached.join());
       } });
       export const grader = defineGrader(() => 1);`,
    );
  const triage = join(EXAMPLES, 'triage/held-out.jsonl');
  const ISOLATED = "isolation: 'process',";

  it('reaches OpenAI where Trainyard is not used, as every look at it here would see', async () => {
    expect(await runClosed(tracing())).toMatchObject({ code: 0, reached: OPENAI });
  });

  it.each(['trainyard/openai-agents', 'trainyard/osmosis/openai-agents', 'trainyard/tuner'])(
    'is off for who imports %s, even after the SDK',
    async (from) => {
      expect(await runClosed(tracing(from))).toMatchObject({ code: 0, reached: [] });
    },
  );

  it.each([['', 'here.ts', ''], ...(hasSandbox ? [[', in a process of its own', 'isolated.ts', ISOLATED]] : [])])(
    'is off in a run whose agent uses the SDK by itself%s',
    async (_, name, options) => {
      const { code, output, reached } = await tryOnce([await entry(name, options)], triage);
      expect({ code, reached }).toEqual({ code: 0, reached: [] });
      expect(output).toMatch(/reached: $/m);
    },
  );

  it('stays on where the variable says so, in a process of its own too', needsSandbox, async () => {
    const on = { OPENAI_AGENTS_DISABLE_TRACING: '0' };
    const { output } = await tryOnce([await entry('isolated-on.ts', ISOLATED)], triage, on);
    expect(output).toContain(`reached: ${OPENAI[0]}`);
  });

  it('stays on where the entry switches it on', async () => {
    const file = await entry('on.ts', '', 'setTracingDisabled(false);');
    expect(await tryOnce([file], triage)).toMatchObject({ code: 0, reached: OPENAI });
  });
});

describe('the closed network', { concurrent: true }, () => {
  it.each([
    ['fetch', "await fetch('https://example.org').catch(() => {})", 'example.org:443'],
    ['a socket', "const s = connect(80, '192.0.2.1'); s.on('error', () => {})", '192.0.2.1:80'],
    ['a name', "await lookup('example.org').catch(() => {})", 'name example.org'],
    ['a process', "spawnSync(process.execPath, ['-e', `fetch('https://example.org').catch(() => {})`])", 'example.org:443'],
    [
      'a thread',
      "await once(new Worker(`fetch('https://example.org').catch(() => {})`, { eval: true }), 'exit')",
      'example.org:443',
    ],
  ])('sees %s', async (_, code, reached) => {
    const imports = `import { connect } from 'node:net'; import { lookup } from 'node:dns/promises'; import { once } from 'node:events';
      import { spawnSync } from 'node:child_process'; import { Worker } from 'node:worker_threads';`;
    expect(await runClosed(script(`${imports} ${code}`))).toEqual({ code: 0, output: '', reached: [reached] });
  });

  it('leaves loopback open', async () => {
    const code = `import { createServer } from 'node:http';
      const server = createServer((_, answer) => answer.end('hello')).listen(0);
      console.log(await (await fetch('http://localhost:' + server.address().port)).text()); server.close();`;
    expect(await runClosed(script(code))).toEqual({ code: 0, output: 'hello\n', reached: [] });
  });
});
