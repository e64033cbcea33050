/** The few terminal sequences the screen uses, and whether to use them at all. */

const ESCAPE = '\u001b[';

export const HIDE_CURSOR = `${ESCAPE}?25l`;
export const SHOW_CURSOR = `${ESCAPE}?25h`;
export const ERASE_LINE_END = `${ESCAPE}K`;
/** From the beginning of this line to the end of the screen. */
export const ERASE_BELOW = `\r${ESCAPE}J`;

export function up(lines: number): string {
  return lines > 0 ? `${ESCAPE}${lines}A` : '';
}

/** A live view is for a person at a terminal that understands it; everyone else gets plain lines. */
export function wantsScreen(isTerminal: boolean, { TERM, CI }: NodeJS.ProcessEnv): boolean {
  const automatic = CI !== undefined && !['', '0', 'false'].includes(CI);
  return isTerminal && TERM !== 'dumb' && !automatic;
}
