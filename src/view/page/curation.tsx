/** The two things the page does to a run: leaving rollouts or turns out of training, with a reason, and writing a dataset. */
import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import type { DatasetRequest, MarkRequest } from '../api.ts';
import { type Problem, post, problemOf } from './data.ts';
import { Notice, plural } from './parts.tsx';

export function Dialog({
  title,
  close,
  children,
}: {
  readonly title: string;
  close(): void;
  readonly children: ComponentChildren;
}) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => ref.current?.showModal(), []);
  return (
    <dialog ref={ref} onClose={close} aria-label={title}>
      <h2>{title}</h2>
      {children}
    </dialog>
  );
}

/** A dialog whose one action can fail; it closes when the action has succeeded. */
function ActionDialog(props: {
  readonly title: string;
  readonly action: string;
  readonly children: ComponentChildren;
  act(): Promise<void>;
  close(): void;
}) {
  const [problem, fail] = useState<Problem>();
  const [busy, work] = useState(false);
  const act = (event: Event): void => {
    event.preventDefault();
    work(true);
    props.act().then(props.close, (thrown) => {
      work(false);
      fail(problemOf(thrown));
    });
  };
  return (
    <Dialog title={props.title} close={props.close}>
      <form onSubmit={act}>
        {props.children}
        {problem && <Notice kind="error" {...problem} />}
        <p class="row end">
          <button type="button" onClick={props.close}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={busy}>
            {busy ? 'Working…' : props.action}
          </button>
        </p>
      </form>
    </Dialog>
  );
}

export interface Marking extends Pick<MarkRequest, 'rolloutIds' | 'turn'> {
  readonly undo: boolean;
}

export function MarkDialog(props: { readonly run: string; readonly marking: Marking; done(): void; close(): void }) {
  const { rolloutIds, turn, undo } = props.marking;
  const [reason, setReason] = useState('');
  const what = turn === undefined ? plural(rolloutIds.length, 'rollout') : `turn ${turn} of this rollout`;
  const act = async (): Promise<void> => {
    await post(`/api/runs/${props.run}/marks`, {
      ...props.marking,
      ...(reason.trim() !== '' && { reason }),
    } satisfies MarkRequest);
    props.done();
  };
  return (
    <ActionDialog
      title={undo ? `Take ${what} back into training` : `Exclude ${what} from training`}
      act={act}
      close={props.close}
      action={undo ? 'Take back' : 'Exclude'}
    >
      <label>
        Reason{undo && ' (optional)'}
        <input
          value={reason}
          required={!undo}
          maxLength={2000}
          placeholder="the answer leaked into the prompt"
          onInput={({ currentTarget }) => setReason(currentTarget.value)}
        />
      </label>
      <p class="muted small">
        Kept with the mark. It counts from the next step on, and in exports; steps already taken stay trained.
      </p>
    </ActionDialog>
  );
}

const FORMATS: Readonly<Record<DatasetRequest['format'], string>> = {
  openai: 'conversations as OpenAI fine-tuning JSONL',
  jsonl: 'token rows with log-probabilities, JSONL',
  parquet: 'the same rows, Parquet',
  trl: 'TRL, Parquet',
  verl: 'verl, Parquet',
};
const ONLY = { all: 'all that match', graded: 'those with a reward', successes: 'successes' } as const;

const quoted = (text: string): string => (/^[\w./:=+-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

function download(blob: Blob, name: string): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

export function DatasetDialog(props: {
  readonly run: string;
  readonly path: string;
  readonly filter: string;
  readonly matching: number;
  close(): void;
}) {
  const { run, path, filter, matching, close } = props;
  const [format, setFormat] = useState<DatasetRequest['format']>('openai');
  const [only, setOnly] = useState<keyof typeof ONLY>('all');
  const [copied, setCopied] = useState(false);
  const name = `dataset.${format === 'openai' || format === 'jsonl' ? 'jsonl' : 'parquet'}`;
  const flags = ['--only', only, ...(filter === '' ? [] : ['--filter', filter])];
  const command = ['trainyard', 'export', path, '--format', format, '--to', name, ...flags].map(quoted).join(' ');
  const act = async (): Promise<void> => {
    const asked = { format, filter, only } satisfies DatasetRequest;
    download(await (await post(`/api/runs/${run}/dataset`, asked)).blob(), name);
  };
  return (
    <ActionDialog title={`Dataset of ${plural(matching, 'rollout')}`} act={act} close={close} action="Download">
      <p class="muted small text">{filter === '' ? 'No filter: all rollouts of the run.' : `Filter: ${filter}`}</p>
      <label>
        Format
        <select value={format} onChange={({ currentTarget }) => setFormat(currentTarget.value as typeof format)}>
          {Object.entries(FORMATS).map(([value, meaning]) => (
            <option key={value} value={value}>{`${value}: ${meaning}`}</option>
          ))}
        </select>
      </label>
      <label>
        Which of them
        <select value={only} onChange={({ currentTarget }) => setOnly(currentTarget.value as typeof only)}>
          {Object.entries(ONLY).map(([value, meaning]) => (
            <option key={value} value={value}>
              {meaning}
            </option>
          ))}
        </select>
      </label>
      <p class="muted small">The same on the command line:</p>
      <pre class="text code">{command}</pre>
      <button type="button" onClick={() => void navigator.clipboard.writeText(command).then(() => setCopied(true))}>
        {copied ? '✓ Copied' : 'Copy command'}
      </button>
    </ActionDialog>
  );
}
