import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type LocalServer, localServer } from '../../../test/fixtures/local-server.ts';
import { Outbound, type OutboundRules } from './outbound.ts';

const outbound = (rules: Partial<OutboundRules> = {}): Outbound =>
  new Outbound({ loopback: () => false, ownPort: () => undefined, ...rules });
const PUBLIC = { address: '93.184.216.34', family: 4 };
const HERE = { address: '127.0.0.1', family: 4 };

let server: LocalServer;
let port: number;
const asked: { readonly host: string | undefined; readonly body: string }[] = [];
beforeAll(async () => {
  server = await localServer((incoming, outgoing, body) => {
    asked.push({ host: incoming.headers.host, body: body.toString() });
    if (incoming.url === '/away') outgoing.writeHead(302, { location: 'http://169.254.169.254/' }).end();
    else if (incoming.url === '/nothing') outgoing.writeHead(204).end();
    else outgoing.writeHead(200, { 'content-type': 'text/plain' }).end('here');
  });
  port = Number(new URL(server.origin).port);
});
afterAll(() => server[Symbol.asyncDispose]());

const INNER = `
  http://127.0.0.1:8080/done http://127.1/ http://0x7f.1/ http://2130706433/ http://0177.0.0.1/ http://①②⑦.0.0.1/ http://127.0.0.1./
  http://[::1]/ http://[::ffff:127.0.0.1]/ http://[::127.0.0.1]/ http://[::ffff:0:127.0.0.1]/ http://0.0.0.0/ http://[::]/
  http://localhost/ http://localhost./ http://a.localhost:1/ http://10.1.2.3/ http://172.16.0.1/ http://192.168.1.1/ http://100.64.0.1/
  http://169.254.169.254/latest/meta-data/ http://[fe80::1]/ http://[fd00:ec2::254]/ http://[::ffff:10.0.0.1]/ http://[::10.0.0.1]/
  http://[64:ff9b::a00:1]/ http://[2002:7f00:1::]/ http://224.0.0.1/ http://255.255.255.255/`;

describe('a URL that somebody else names', () => {
  it.each(INNER.trim().split(/\s+/))('is refused where it leads to this machine or an inner network: %s', (url) => {
    expect(outbound().fault(url)).toMatch(/leads to .*allowedHosts/);
  });

  it.each([
    ['ftp://example.com/', 'ftp: and not http'],
    ['file:///etc/passwd', 'file: and not http'],
    ['unix:/run/docker.sock', 'unix: and not http'],
    ['http://user:pass@example.com/', 'user name or password'],
    ['http://key@example.com/', 'user name or password'],
    ['/done', 'not a URL'],
    ['http://', 'not a URL'],
  ])('is refused where it is no plain http: %s', (url, why) => {
    expect(outbound().fault(url)).toContain(why);
  });

  it.each(['https://93.184.216.34/', 'http://[2606:4700::1111]/', 'https://example.com/done'])('may be public: %s', (url) => {
    expect(outbound().fault(url)).toBeUndefined();
  });

  it('is refused where its name has an inner address, were it one of several', async () => {
    const resolve = async (): Promise<(typeof HERE)[]> => [PUBLIC, { address: '10.0.0.7', family: 4 }];
    expect(await outbound({ resolve }).faultNow('https://trainer.example/')).toContain('10.0.0.7');
  });

  it('is only one of the allowed hosts where such are given, wherever these are', () => {
    const only = outbound({ allowedHosts: ['10.0.0.5', 'trainer.internal:8443', 'Trainer.example'] });
    expect(only.fault('http://10.0.0.5:9000/done')).toBeUndefined();
    expect(only.fault('https://trainer.internal:8443/')).toBeUndefined();
    expect(only.fault('https://trainer.example./')).toBeUndefined();
    expect(only.fault('https://trainer.internal/')).toContain('not one of the allowed hosts');
    expect(only.fault('https://93.184.216.34/')).toContain('not one of the allowed hosts');
  });

  it('is never this server itself, by whatever name', async () => {
    const rules = { loopback: () => true, ownPort: () => port, resolve: async () => [HERE] };
    expect(outbound(rules).fault(`http://127.0.0.1:${port}/rollout`)).toBe('is this server itself');
    expect(outbound({ ...rules, allowedHosts: ['127.0.0.1'] }).fault(`http://127.0.0.1:${port}/`)).toBe('is this server itself');
    expect(await outbound(rules).faultNow(`http://me.example:${port}/`)).toBe('is this server itself');
    expect(outbound({ ...rules, ownPort: () => port + 1 }).fault(`http://127.0.0.1:${port}/`)).toBeUndefined();
  });
});

describe('a connection', () => {
  it('goes to the address that was checked, under the name that was asked for', async () => {
    const to = outbound({ loopback: () => true, resolve: async () => [HERE] });
    const response = await to.fetch(`http://trainer.example:${port}/done`, { method: 'POST', body: '{"a":1}' });
    expect(await response.text()).toBe('here');
    expect(asked.at(-1)).toEqual({ host: `trainer.example:${port}`, body: '{"a":1}' });
    to.close();
  });

  it('is not made where the name leads elsewhere by then', async () => {
    const answers = [[PUBLIC], [HERE]];
    const to = outbound({ resolve: async () => answers.shift() ?? [] });
    const url = `http://rebinding.example:${port}/done`;
    expect(await to.faultNow(url)).toBeUndefined();
    const before = asked.length;
    await expect(to.fetch(url)).rejects.toMatchObject({ name: 'ForbiddenAddress' });
    expect(asked).toHaveLength(before);
  });

  it('does not follow where it is sent on', async () => {
    const to = outbound({ loopback: () => true });
    const response = await to.fetch(`http://127.0.0.1:${port}/away`);
    expect(response.status).toBe(302);
    expect((await to.fetch(`http://127.0.0.1:${port}/nothing`)).body).toBeNull();
    to.close();
  });

  it('ends with its signal, for the signal’s reason', async () => {
    const to = outbound({ loopback: () => true, resolve: () => new Promise(() => undefined) });
    const reason = new Error('enough');
    const controller = new AbortController();
    const waiting = to.fetch(`http://slow.example:${port}/`, { signal: controller.signal });
    controller.abort(reason);
    await expect(waiting).rejects.toBe(reason);
    to.close();
  });
});
