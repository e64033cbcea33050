/**
 * The mock engine, a process of its own on a bare socket: whatever is asked, it says the same 200 tokens, at once, in the words of an
 * OpenAI-compatible inference server that was asked for ids and log-probabilities. Every server that is compared gets the same bytes,
 * whether it reads them or passes them on.
 *
 * `/trickle` gives one token a second until it is told to let go; any other path the whole answer, or 200 events in 20 writes.
 */
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { loadMaterial, type Material } from './conversation.ts';

const EVENTS_PER_WRITE = 10;
const TRICKLE_MS = 1000;
const openAI = { id: 'chatcmpl-mock', created: 1_700_000_000, model: 'gpt-4o' };

const material = await loadMaterial();
const completion = whole(completionOf(material));
const completionEvents = writesOf(material.replyIds.map((_, place) => eventOf(place)));
const STREAM_HEAD = 'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n';
let letGo = false;

const server = createServer({ noDelay: true }, (socket) => {
  let so: Buffer = Buffer.alloc(0);
  socket.on('error', () => socket.destroy());
  socket.on('data', (chunk: Buffer) => {
    so = so.length === 0 ? chunk : Buffer.concat([so, chunk]);
    const end = so.indexOf('\r\n\r\n');
    if (end === -1) return;
    const head = so.toString('latin1', 0, end);
    const length = Number(/\r\ncontent-length: *(\d+)/i.exec(head)?.[1] ?? 0);
    if (so.length < end + 4 + length) return;
    const body = so.subarray(end + 4, end + 4 + length);
    so = so.subarray(end + 4 + length);
    reply(socket, head.slice(5, head.indexOf(' ', 5)), body);
  });
});

function reply(socket: Socket, path: string, body: Buffer): void {
  if (path === '/trickle') trickle(socket);
  else if (!path.startsWith('/v1/chat/completions')) socket.end('HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n');
  else if (body.includes('"stream":true')) stream(socket, completionEvents);
  else socket.write(completion);
}

function stream(socket: Socket, writes: readonly string[]): void {
  socket.write(STREAM_HEAD);
  let next = 0;
  const write = (): void => {
    socket.write(writes[next++]!);
    if (next < writes.length) setImmediate(write);
  };
  write();
}

function trickle(socket: Socket): void {
  const { replyIds } = material;
  let told = 0;
  socket.write(STREAM_HEAD);
  const tell = (): void => {
    const place = letGo ? replyIds.length - 1 : told++ % (replyIds.length - 1);
    socket.write(chunked(eventOf(place)));
    if (!letGo) return;
    socket.write('0\r\n\r\n');
    clearInterval(timer);
  };
  const timer = setInterval(tell, TRICKLE_MS);
  socket.once('close', () => clearInterval(timer));
  tell();
}

function whole(value: object): string {
  const body = JSON.stringify(value);
  const head = `HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n`;
  return head + body;
}

function chunked(text: string): string {
  return `${Buffer.byteLength(text).toString(16)}\r\n${text}\r\n`;
}

function writesOf(events: readonly string[]): readonly string[] {
  const writes: string[] = [];
  for (let i = 0; i < events.length; i += EVENTS_PER_WRITE) writes.push(chunked(events.slice(i, i + EVENTS_PER_WRITE).join('')));
  return [...writes.slice(0, -1), `${writes.at(-1)!}0\r\n\r\n`];
}

/** One token as an inference server tells it. */
function tokenAt(place: number): object {
  const { replyIds, logprobs, tokenizer } = material;
  const token = tokenizer.decode([replyIds[place]!]);
  return { token, logprob: logprobs[place], bytes: [...Buffer.from(token)], top_logprobs: [] };
}

function completionOf({ reply: content, replyIds }: Material): object {
  const logprobs = { content: replyIds.map((_, place) => tokenAt(place)) };
  const message = { role: 'assistant', content, refusal: null };
  const choices = [{ index: 0, message, logprobs, finish_reason: 'stop', token_ids: replyIds }];
  const usage = { prompt_tokens: 600, completion_tokens: replyIds.length, total_tokens: 600 + replyIds.length };
  const promptIds = Array.from({ length: 600 }, (_, i) => replyIds[i % replyIds.length]!);
  return { ...openAI, object: 'chat.completion', choices, usage, prompt_token_ids: promptIds };
}

function eventOf(place: number): string {
  const last = place === material.replyIds.length - 1;
  const delta = last ? {} : { content: material.tokenizer.decode([material.replyIds[place]!]) };
  const logprobs = { content: [tokenAt(place)] };
  const choice = { index: 0, delta, logprobs, finish_reason: last ? 'stop' : null, token_ids: [material.replyIds[place]!] };
  const event = `data: ${JSON.stringify({ ...openAI, object: 'chat.completion.chunk', choices: [choice] })}\n\n`;
  return last ? `${event}data: [DONE]\n\n` : event;
}

process.on('message', () => {
  letGo = true;
  process.send!('letting go');
});
process.on('disconnect', () => process.exit(0));
server.listen(0, '127.0.0.1', () => process.send!((server.address() as AddressInfo).port));
