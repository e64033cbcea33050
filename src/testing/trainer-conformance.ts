/**
 * What every trainer must do, and what it must agree on with its engine, as a list of cases for any test runner:
 * `for (const { name, run } of …) it(name, run)`.
 *
 * Each case opens a policy of its own and closes it. Failures are AssertionErrors of node:assert. Weights are looked at only through
 * `forward`, so they may be anywhere. What a lost server does (POLICY_LOST) is not here: how to lose one differs from trainer to trainer.
 */
import { agreementCases } from './policy-agreement.ts';
import { type PolicyConformanceOptions, type PolicyUnderTest, TOLERANCE } from './policy-under-test.ts';
import type { ConformanceCase } from './store-conformance.ts';
import { TrainerProbe } from './trainer-probe.ts';
import { savingCases } from './trainer-saving.ts';
import { scoringCases } from './trainer-scoring.ts';
import { steppingCases } from './trainer-stepping.ts';

/** The cases for the policy that `open` gives: its trainer's weights are any, and its engine serves what the trainer publishes. */
export function trainerConformance(
  name: string,
  open: () => Promise<PolicyUnderTest>,
  { tolerance = TOLERANCE }: PolicyConformanceOptions = {},
): readonly ConformanceCase[] {
  const sentences = { ...scoringCases, ...steppingCases, ...savingCases, ...agreementCases };
  return Object.entries(sentences).map(([sentence, check]) => ({
    name: `${name} ${sentence}`,
    run: async () => {
      await using policy = await open();
      await using probe = new TrainerProbe(policy, tolerance);
      await check(probe, open);
    },
  }));
}
