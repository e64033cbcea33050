import { describe, expect, it } from 'vitest';
import { asWorkflow } from '../core/define.ts';
import { AgentFlowBase } from './agent-flow-base.ts';

describe('an agent flow', () => {
  it('whose run is not async is refused before anything runs', () => {
    class Hasty extends AgentFlowBase {
      override run(): Promise<number> {
        return Promise.resolve(1);
      }
    }
    expect(() => asWorkflow(Hasty)).toThrowError(
      expect.objectContaining({
        code: 'WORKFLOW_NOT_ASYNC',
        message: expect.stringContaining('Hasty'),
        hint: expect.stringContaining('async run'),
      }),
    );
  });

  it('without a run of its own is a base, and none at all', () => {
    abstract class Base extends AgentFlowBase {}
    expect(asWorkflow(Base)).toBeUndefined();
  });
});
