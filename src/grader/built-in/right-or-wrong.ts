/** What graders of right and wrong return: all or nothing. */
import type { Reward } from '../../core/types.ts';

export function rightOrWrong(isRight: boolean): Required<Pick<Reward, 'value' | 'success'>> {
  return { value: isRight ? 1 : 0, success: isRight };
}
