import { describe, expect, it } from 'vitest';
import { done, evalEnd, progress, runStart, stepEnd } from '../../../test/fixtures/cli/events.ts';
import type { RunEvent } from '../../core/events.ts';
import { follow, secondsLeft, startOf, type ViewState } from './state.ts';

const at = (state: ViewState, now: number): ViewState => ({ ...state, now });

const TITLE = { verb: 'train', entry: 'agent.ts', model: 'm', seed: 1, run: null } as const;

/** One event a second, the first at second 1. */
function seen(...events: readonly RunEvent[]): ViewState {
  return events.reduce((state, event, i) => follow(state, event, i + 1), startOf(TITLE, 0));
}

describe('what a run is doing', () => {
  it('is known from the events alone, without any progress being told', () => {
    expect(seen(runStart()).activity?.phase).toBe('evaluating');
    expect(seen(runStart({ heldOut: 0 })).activity?.phase).toBe('rolling-out');
    expect(seen(runStart(), evalEnd('before', 0, 0.1)).activity?.phase).toBe('rolling-out');
    expect(seen(runStart(), evalEnd('after', 40, 0.1)).activity).toBeNull();
    expect(seen(runStart(), done()).activity).toBeNull();
  });

  it('keeps the time it began while its progress goes on, and starts anew with the next phase', () => {
    const rolling = seen(runStart({ heldOut: 0 }), progress({ done: 1 }), progress({ done: 2 }));
    expect(rolling.activity).toMatchObject({ since: 1, done: 2 });
    expect(follow(rolling, progress({ phase: 'training' }), 9).activity).toMatchObject({ since: 9 });
  });

  it('begins with the run, or with the first progress of an evaluation', () => {
    expect(seen({ type: 'warning', code: 'UNKILLABLE_GRADER', message: 'm' }).begun).toBe(false);
    expect(seen(runStart()).begun).toBe(true);
    expect(seen(progress({ phase: 'evaluating' })).begun).toBe(true);
  });

  it('is the last step once it was interrupted', () => {
    expect(seen(runStart(), { type: 'warning', code: 'OTHER', message: 'm' }).finishing).toBe(false);
    expect(seen(runStart(), { type: 'warning', code: 'INTERRUPTED', message: 'm' }, stepEnd()).finishing).toBe(true);
  });
});

describe('held-out success', () => {
  it('compares no scores of different tasks, and in the end says what the run says', () => {
    const events = [runStart(), evalEnd('before', 0, 0.1), evalEnd('during', 10, 1, 64), evalEnd('after', 20, 0.9)];
    expect(seen(...events).success?.best).toMatchObject({ step: 20, value: 0.9 });
    const best = { step: 10, success: 1, checkpoint: 'c' };
    expect(seen(...events, done({ best })).success?.best).toEqual({ step: 10, value: 1 });
  });
});

describe('the time left', () => {
  it('is unknown before the first step, and when the run is about to end', () => {
    expect(secondsLeft(seen(runStart()))).toBeNull();
    expect(secondsLeft(seen(runStart(), stepEnd({ step: 40 })))).toBeNull();
    expect(secondsLeft(seen(runStart(), stepEnd(), { type: 'warning', code: 'INTERRUPTED', message: 'm' }))).toBeNull();
  });

  it('is the steps left at the pace of the last ones, and one more evaluation', () => {
    expect(secondsLeft(seen(runStart({ steps: 11 }), stepEnd()))).toBeCloseTo(20);
    expect(secondsLeft(seen(runStart({ steps: 11 }), evalEnd('before', 0, 0), stepEnd()))).toBeCloseTo(24);
  });

  it('counts the evaluations during training into the pace', () => {
    const state = seen(runStart({ steps: 11 }), stepEnd(), evalEnd('during', 1, 0));
    expect(secondsLeft(at(state, state.steppedAt))).toBeCloseTo(10 * (2 + 4) + 4);
  });

  it('judges a run that was resumed by its own steps', () => {
    expect(secondsLeft(seen(runStart({ steps: 31, resumedAt: 20 }), stepEnd({ step: 21 })))).toBeCloseTo(20);
  });

  it('counts down within a step, and stands still when the step takes longer than the others', () => {
    const state = seen(runStart({ steps: 11 }), stepEnd());
    expect(secondsLeft(at(state, state.now + 1))).toBeCloseTo(19);
    expect(secondsLeft(at(state, state.now + 500))).toBeCloseTo(18);
  });
});
