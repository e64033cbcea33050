/**
 * `trainyard init`: asks at most three questions, writes a project, and says what to type next. With `--here` it says which lines of an agent
 * to change instead. Asks nothing with `--yes` or `--json`, or where nobody could answer. Returns the exit code.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline/promises';
import { PassThrough } from 'node:stream';
import { printableLine } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { shellWord } from '../settings/settings.ts';
import { saying } from './output/print.ts';
import { unfiltered } from './output/terminal.ts';
import { asCalled } from './output/text.ts';

interface InitFlags {
  readonly client?: string;
  readonly modelKind?: string;
  readonly task?: string;
  readonly here?: string;
  readonly yes?: boolean;
  readonly json: boolean;
}

export async function initCommand(given: string | undefined, flags: InitFlags): Promise<number> {
  const isAsked = !flags.yes && !flags.json && process.stdin.isTTY && process.stdout.isTTY;
  if (flags.here !== undefined) return await here(flags.here, flags, isAsked);
  const { clients, MODEL_KINDS, PACKAGE, projectFiles, TASKS, writeFiles } = await import('../init/project.ts');
  const folder = given ?? 'my-agent';
  const about = Object.fromEntries(Object.entries(clients()).map(([name, client]) => [name, client.about]));
  const client = await choice('What is the agent written with?', about, flags.client, isAsked);
  const modelKind = await choice('Which model?', MODEL_KINDS, flags.modelKind, isAsked);
  const task = await choice('Which task to start from?', TASKS, flags.task, isAsked);
  const files = projectFiles(folder, { client, modelKind, task });
  await writeFiles(folder, files);
  const isUnbuilt = !existsSync(join(PACKAGE, 'dist'));
  const next = [
    ...(isUnbuilt ? [`(cd ${shellWord(PACKAGE)} && npm run build)   # this clone of Trainyard is not built yet`] : []),
    `cd ${shellWord(folder)} && npm install`,
    'npm run eval',
    'npm run train',
  ];
  const written = { type: 'init', folder, client, modelKind, task, files: Object.keys(files), next };
  const lines = [`Wrote ${written.files.length} files to ${folder}. Next:`, ...next.map((line) => `  ${line}`)];
  saying(flags.json)(lines, written);
  return 0;
}

/** What the flag says, what is answered, or the first choice. */
async function choice<Name extends string>(
  question: string,
  choices: Readonly<Record<Name, string>>,
  given: string | undefined,
  isAsked: boolean,
): Promise<Name> {
  const names = Object.keys(choices) as Name[];
  const named = (answer: string | undefined): Name | undefined =>
    names.find((name, i) => answer === name || answer === String(i + 1));
  if (given !== undefined || !isAsked) {
    const found = given === undefined ? names[0] : names.find((name) => name === given);
    if (found !== undefined) return found;
    throw new TrainyardError('USAGE', `--client: expected ${names.join(', ')}, found ${JSON.stringify(given)}`);
  }
  console.log([question, ...names.map((name, i) => `  ${i + 1}  ${name.padEnd(14)} ${choices[name]}`)].join('\n'));
  for (;;) {
    const found = named((await asked(`1 to ${names.length} [1]: `)).trim() || '1');
    if (found !== undefined) return found;
  }
}

/** Throws CANCELLED on Ctrl-C and at the end of the input. */
async function asked(question: string): Promise<string> {
  // It moves the cursor, and shows nothing but our question and what is typed.
  const output = new PassThrough({ encoding: 'utf8' }).on('data', unfiltered(process.stdout));
  const lines = createInterface({ input: process.stdin, output, terminal: true });
  const left = Promise.withResolvers<never>();
  lines.once('close', () => left.reject(new TrainyardError('CANCELLED', 'cancelled; nothing was written', { cause: 'SIGINT' })));
  try {
    return await Promise.race([lines.question(question), left.promise]);
  } finally {
    lines.close();
  }
}

async function here(entry: string, { yes, json }: InitFlags, isAsked: boolean): Promise<number> {
  const { LOOKED_FOR, missingFiles, placesIn } = await import('../init/here.ts');
  const { findConfig } = await import('../settings/config-file.ts');
  const { changes, ready, isWorkflow } = await placesIn(entry);
  const files = missingFiles(entry, findConfig() !== undefined);
  const names = Object.keys(files);
  const isFound = changes.length + ready.length > 0;
  const lines = [
    ...changes.flatMap(({ file, line, before, after, add }) => [
      `${file}:${line}`,
      `  before  ${before}`,
      `  after   ${after}`,
      ...(add === undefined ? [] : [`  with    ${add}`]),
    ]),
    ...ready.map((place) => `${place} uses the policy already`),
    ...(isFound ? [] : [`Found no model in ${entry} and the files it imports. Looked for ${LOOKED_FOR}`]),
    ...(isWorkflow ? [] : [`${entry} has no workflow yet: export default defineWorkflow(async (ctx) => { … }), and a grader`]),
  ];
  if (!json) console.log(lines.map(printableLine).join('\n'));
  const isWanted = names.length > 0 && (yes || (isAsked && /^y/i.test(await asked(`Write ${names.join(', ')}? [y/N] `))));
  if (isWanted) await (await import('../init/project.ts')).writeFiles('.', files);
  const said = isWanted
    ? `Wrote ${names.join(', ')}: put your tasks there. Next: ${asCalled('trainyard preflight')}`
    : 'Nothing was written.';
  saying(json)([said], { type: 'init', entry, changes, ready, isWorkflow, files: isWanted ? names : [] });
  return isFound ? 0 : 1;
}
