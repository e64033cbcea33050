/**
 * `trainyard init`: asks at most three questions, writes a project, and says what to type next. With `--here` it says which lines of an agent
 * to change instead. Asks nothing with `--yes`, with `--json`, or if nobody could answer. Returns the exit code.
 */
import { createInterface } from 'node:readline/promises';
import { printableLine } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { shellWord } from '../run/settings.ts';
import { asCalled } from './text.ts';

interface InitFlags {
  readonly client?: string;
  readonly modelKind?: string;
  readonly task?: string;
  readonly here?: string;
  readonly yes?: boolean;
  readonly json: boolean;
}

export async function initCommand(given: string | undefined, flags: InitFlags): Promise<number> {
  const isAsked = !flags.yes && !flags.json && Boolean(process.stdin.isTTY && process.stdout.isTTY);
  if (flags.here !== undefined) return await here(flags.here, flags, isAsked);
  const { CLONE, clients, isBuilt, MODEL_KINDS, projectFiles, TASKS, writeFiles } = await import('../init/project.ts');
  const [byClient, folder] = [clients(), given ?? 'my-agent'];
  const about = Object.fromEntries(Object.entries(byClient).map(([name, client]) => [name, client.about]));
  const client = await choice('What is the agent written with?', about, flags.client, isAsked);
  const modelKind = await choice('Which model?', MODEL_KINDS, flags.modelKind, isAsked);
  const task = await choice('Which task to start from?', TASKS, flags.task, isAsked);
  const files = projectFiles(folder, { client, modelKind, task });
  await writeFiles(folder, files);
  if (flags.json) console.log(JSON.stringify({ type: 'init', folder, client, modelKind, task, files: Object.keys(files) }));
  else {
    const isClone = files['package.json']?.includes('"trainyard": "file:') && !isBuilt();
    const build = isClone ? [`  (cd ${shellWord(CLONE)} && npm run build)   # this clone of Trainyard is not built yet`] : [];
    console.log(
      [
        `Wrote ${Object.keys(files).length} files to ${folder}. Next:`,
        ...build,
        `  cd ${shellWord(folder)} && npm install`,
        '  npm run eval',
        '  npm run train',
      ].join('\n'),
    );
  }
  return 0;
}

/** The flag's value, the answer, or the first choice. */
async function choice<Name extends string>(
  question: string,
  choices: Readonly<Record<Name, string>>,
  given: string | undefined,
  isAsked: boolean,
): Promise<Name> {
  const names = Object.keys(choices) as Name[];
  const named = (answer: string): Name | undefined => names.find((name, i) => answer === name || answer === String(i + 1));
  if (given !== undefined) {
    const found = names.find((name) => name === given);
    if (found !== undefined) return found;
    throw new TrainyardError('USAGE', `--client: expected ${names.join(', ')}, found ${JSON.stringify(given)}`);
  }
  if (!isAsked) return names[0]!;
  console.log([question, ...names.map((name, i) => `  ${i + 1}  ${name.padEnd(14)} ${choices[name]}`)].join('\n'));
  for (;;) {
    const answer = (await asked(`1 to ${names.length} [1]: `)).trim();
    const found = answer === '' ? names[0] : named(answer);
    if (found !== undefined) return found;
  }
}

/** Throws CANCELLED on Ctrl-C and at the end of the input. */
async function asked(question: string): Promise<string> {
  const lines = createInterface({ input: process.stdin, output: process.stdout });
  const left = Promise.withResolvers<never>();
  lines.once('close', () => left.reject(new TrainyardError('CANCELLED', 'cancelled; nothing was written', { cause: 'SIGINT' })));
  try {
    return await Promise.race([lines.question(question), left.promise]);
  } finally {
    lines.removeAllListeners('close').close();
  }
}

async function here(entry: string, { yes, json }: InitFlags, isAsked: boolean): Promise<number> {
  const { LOOKED_FOR, missingFiles, placesIn } = await import('../init/here.ts');
  const { writeFiles } = await import('../init/project.ts');
  const { changes, ready, isWorkflow } = await placesIn(entry);
  const files = missingFiles(entry);
  const names = Object.keys(files);
  if (!json) {
    const lines = [
      ...changes.flatMap(({ file, line, before, after, add }) => [
        `${file}:${line}`,
        `  - ${before}`,
        `  + ${after}`,
        ...(add ? [`  + ${add}`] : []),
      ]),
      ...ready.map((place) => `${place}: uses the policy already`),
      ...(changes.length + ready.length === 0
        ? [`Found no model client in ${entry} and what it imports. Looked for: ${LOOKED_FOR.join(', ')}`]
        : []),
      ...(isWorkflow
        ? []
        : [
            `${entry} exports no workflow yet: export default defineWorkflow(async (ctx) => { … }), and a grader (docs/guide/02-your-agent.md)`,
          ]),
    ];
    console.log(lines.map(printableLine).join('\n'));
  }
  const isWanted = names.length > 0 && (yes || (isAsked && /^y/i.test(await asked(`Write ${names.join(', ')}? [y/N] `))));
  if (isWanted) await writeFiles('.', files);
  if (json) console.log(JSON.stringify({ type: 'init', entry, changes, ready, isWorkflow, files: isWanted ? names : [] }));
  else if (isWanted) console.log(`Wrote ${names.join(', ')}. Put your tasks there; then: ${asCalled('trainyard preflight')}`);
  else if (names.length > 0) console.log(`Nothing was written. With --yes: ${names.join(', ')}`);
  return changes.length + ready.length > 0 ? 0 : 1;
}
