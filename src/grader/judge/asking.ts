/**
 * Asks a judge until it gives a verdict: again after what may pass (a busy or broken server, a silent one, a reply that is no verdict),
 * with longer and longer waits, a few times. A judge that gives none makes the rollout unscorable, never worth 0.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { ChatServer } from '../../core/chat-completions.ts';
import { unscorable } from '../../core/define-grader.ts';
import { complete, type OptionalParameter, type Usage } from './completion.ts';
import type { Shown } from './fence.ts';
import { type JudgedBy, questionOf } from './question.ts';
import { type Verdict, verdictIn } from './verdict.ts';

/** However long a server asks to be left alone. */
export const MOST_WAIT_MS = 30_000;

export interface Patience {
  /** Of one call. */
  readonly timeoutMs: number;
  readonly tries: number;
  /** Before the second try; twice as long before each further one. */
  readonly backoffMs: number;
  readonly maxTokens: number;
}

export interface Asked extends Usage {
  readonly verdict: Verdict;
  readonly calls: number;
}

/**
 * `unsupported` is kept by the caller between questions: what a server does not take is found out once. Only what was left out of a question
 * that was answered counts: a refusal that merely names a parameter, because it repeats the question or this one is too long, is no reason
 * to ask all others differently.
 */
export async function askJudge(
  server: ChatServer,
  by: JudgedBy,
  shown: readonly Shown[],
  patience: Patience,
  unsupported: Set<OptionalParameter>,
  signal: AbortSignal,
): Promise<Asked> {
  const spent = { promptTokens: 0, completionTokens: 0, calls: 0 };
  const without = new Set(unsupported);
  let problem = '';
  for (let attempt = 1; attempt <= patience.tries; ) {
    // Anew each time: a judge that was led astray must not be asked with secrets it may have repeated.
    const { messages, schema, check } = questionOf(by, shown);
    const question = { messages, temperature: 0, maxTokens: patience.maxTokens, format: { schema } };
    const reply = await complete({ server, question, without, timeoutMs: patience.timeoutMs }, signal);
    spent.calls += 1;
    if (reply.kind === 'unsupported') {
      without.add(reply.parameter);
      continue;
    }
    let afterMs: number | undefined;
    if (reply.kind === 'answered') {
      for (const parameter of without) unsupported.add(parameter);
      spent.promptTokens += reply.usage.promptTokens;
      spent.completionTokens += reply.usage.completionTokens;
      const verdict = verdictIn(reply.content, by, check);
      if (typeof verdict !== 'string') return { ...spent, verdict };
      problem = verdict;
    } else {
      problem = `it ${reply.why}`;
      if (!reply.again) return gaveNone(server, attempt, problem);
      afterMs = reply.afterMs;
    }
    if (attempt < patience.tries) await pause(afterMs ?? backoff(patience.backoffMs, attempt), signal);
    attempt += 1;
  }
  return gaveNone(server, patience.tries, problem);
}

function gaveNone({ name }: ChatServer, tries: number, problem: string): never {
  return unscorable(`the judge ${name} gave no verdict in ${tries} ${tries === 1 ? 'try' : 'tries'}: ${problem}`);
}

/** Not all at the same moment: those that were refused together would be again. */
function backoff(firstMs: number, attempt: number): number {
  return firstMs * 2 ** (attempt - 1) * (0.5 + Math.random());
}

async function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  try {
    await sleep(Math.min(MOST_WAIT_MS, milliseconds), undefined, { signal });
  } catch {
    signal.throwIfAborted();
  }
}
