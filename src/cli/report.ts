/** What a run's events look like: lines for people, or one JSON object a line for programs. */
import { styleText } from 'node:util';
import type { Emit, RunEvent } from '../core/events.ts';

export function reporter(json: boolean): Emit {
  return json ? jsonLines(process.stdout) : textLines(process.stdout);
}

export function jsonLines(out: NodeJS.WritableStream): Emit {
  return (event) => {
    if (event.type !== 'progress') out.write(`${JSON.stringify(event)}\n`);
  };
}

export function textLines(out: NodeJS.WritableStream): Emit {
  let entry = '';
  return (event) => {
    if (event.type === 'run-start') entry = event.entry;
    for (const line of describe(event, entry)) out.write(`${line}\n`);
  };
}

function describe(event: RunEvent, entry: string): readonly string[] {
  switch (event.type) {
    case 'run-start':
      return [
        `Training ${styleText('bold', event.entry)} for ${event.steps} steps: ${event.tasks} tasks, ${event.heldOut} held out, seed ${event.seed}`,
        `Run directory ${event.run}`,
      ];
    case 'eval-end': {
      const failed = event.score.failed > 0 ? `, ${event.score.failed} failed` : '';
      const name = event.when === 'only' ? 'Held-out success' : `Held-out success ${event.when} training`;
      return [
        `${name}: ${styleText('bold', percent(event.score.success))} of ${event.score.n} tasks${failed}, at temperature 0 (${event.seconds.toFixed(1)} s)`,
      ];
    }
    case 'step-end': {
      const width = 24;
      const filled = Math.round(Math.max(0, Math.min(1, event.reward)) * width);
      const failures =
        event.failedRollouts + event.failedGrades > 0
          ? `  ${event.failedRollouts} rollouts and ${event.failedGrades} gradings failed`
          : '';
      const seconds = (event.rolloutSeconds + event.trainSeconds).toFixed(1);
      return [
        `step ${String(event.step).padStart(3)}  reward ${event.reward.toFixed(2)} ${'█'.repeat(filled)}${'░'.repeat(width - filled)}` +
          `  ${event.groups - event.groupsWithoutSignal}/${event.groups} groups with signal  ${event.trainedTokens} tokens  ${seconds} s${failures}`,
      ];
    }
    case 'transcript':
      return [
        '',
        `  ${styleText('dim', `task ${event.taskId}, reward ${event.reward ?? 'none'}`)}`,
        ...event.lines.map((line) => `    ${line}`),
      ];
    case 'warning':
      return [`warning ${event.code}: ${event.message}${event.hint === undefined ? '' : ` (${event.hint})`}`];
    case 'done':
      return summary(event, entry);
    case 'progress':
    case 'error':
      return [];
  }
}

function summary(event: RunEvent & { readonly type: 'done' }, entry: string): readonly string[] {
  const change =
    event.before !== null && event.after !== null
      ? `: held-out success ${percent(event.before.success)} → ${percent(event.after.success)}`
      : '';
  return [
    '',
    `${styleText('bold', `Done in ${event.seconds.toFixed(0)} s, ${event.steps} steps${change}`)}`,
    ...(event.checkpoint === null
      ? []
      : [
          `The trained model is in ${event.checkpoint}; measure it again with: trainyard eval ${entry} --model ${event.checkpoint}`,
        ]),
    ...(event.run === null ? [] : [`Every rollout is in ${event.run}/store.sqlite, every event in ${event.run}/events.jsonl`]),
  ];
}

function percent(share: number): string {
  return `${(100 * share).toFixed(1)} %`;
}
