/** Not ends of a line to the standard, but to clients that split lines as Unicode has them. */
const LINE_ENDS = /[\u0085\u2028\u2029]/g;

/** One event of a stream; its data is one line to every client. */
export function serverSentEvent(data: object, name?: string): string {
  const json = JSON.stringify(data).replace(LINE_ENDS, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, '0')}`);
  return `${name === undefined ? '' : `event: ${name}\n`}data: ${json}\n\n`;
}
