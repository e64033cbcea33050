/**
 * Seeded random numbers: sfc32, one small state per stream, so that a stream's numbers depend on its seed alone.
 */

export interface RandomStream {
  /** Uniform in [0, 1), with 24 bits: exact in float32. */
  uniform(): number;
}

/** `seed` is a safe integer; both its halves count. */
export function randomStream(seed: number): RandomStream {
  let a = seed >>> 0;
  let b = Math.floor(seed / 2 ** 32) >>> 0;
  let c = 0x9e3779b9;
  let counter = 1;

  function next(): number {
    const sum = (a + b + counter) | 0;
    counter = (counter + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (c << 21) | (c >>> 11);
    c = (c + sum) | 0;
    return sum >>> 0;
  }

  // Seeds that differ in one bit give unrelated streams only after the state was stirred.
  for (let i = 0; i < 15; i++) next();
  return { uniform: () => (next() >>> 8) / 2 ** 24 };
}

/** One normally distributed number (Box–Muller). */
export function gaussian(stream: RandomStream): number {
  const radius = Math.sqrt(-2 * Math.log(1 - stream.uniform()));
  return radius * Math.cos(2 * Math.PI * stream.uniform());
}
