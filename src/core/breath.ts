/**
 * Lets the event loop breathe. When thousands of rollouts go on at the same moment, all of them would run before the process reads a
 * socket or looks at a timer again: seconds, in which no deadline ends and nobody is answered. Here those that come when the loop
 * has been busy for a while wait, in order, and go on a few per turn of the loop.
 */

/** How long a turn of the loop may have been before those who come have to wait, milliseconds. */
const LONG_MS = 10;
/** How many go on per turn; a few milliseconds of work. */
const AT_ONCE = 32;

const waiting: (() => void)[] = [];
let turnBegan: number | undefined;

/** Undefined where the loop is not that busy: then there is nothing to wait for. */
export function breath(): Promise<void> | undefined {
  if (turnBegan === undefined) beginTurn();
  else if (waiting.length > 0 || performance.now() - turnBegan > LONG_MS) return new Promise((resolve) => waiting.push(resolve));
  return undefined;
}

function beginTurn(): void {
  turnBegan = performance.now();
  setImmediate(endTurn);
}

function endTurn(): void {
  turnBegan = undefined;
  if (waiting.length === 0) return;
  beginTurn();
  for (const goOn of waiting.splice(0, AT_ONCE)) goOn();
}
