/** Against bytes of the official SDK's own protobuf (version 0.36.0), and against what only a hostile or careless writer sends. */
import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { WireError } from './codec.ts';
import {
  decodePassRequest,
  decodePassResult,
  decodeSampleReply,
  encodePassRequest,
  encodePassResult,
  encodeSampleReply,
} from './protobuf.ts';
import { passRequestFromJson, passResultToJson, sampleReplyFromJson } from './tinker-json.ts';
import type { PassRequest } from './tinker-messages.ts';

interface Fixture {
  readonly name: string;
  readonly base64: string;
  readonly json: Readonly<Record<string, unknown>>;
  /** Said in a way that we read and do not write. */
  readonly readOnly?: boolean;
}

function fixtures<T = Fixture>(file: string): readonly T[] {
  return JSON.parse(readFileSync(new URL(`../../../../test/fixtures/tinker/${file}.json`, import.meta.url), 'utf8'));
}
const bytesOf = (base64: string): Buffer => Buffer.from(base64, 'base64');
const base64Of = (bytes: Uint8Array): string => Buffer.from(bytes).toString('base64');
const hex = (text: string): Buffer => Buffer.from(text.replaceAll(' ', ''), 'hex');

describe('bytes of the official SDK', () => {
  it.each(fixtures('pass-requests'))('pass request: $name', ({ name, base64, json }) => {
    const request = passRequestFromJson(json, 'forward_input' in json);
    expect(decodePassRequest(bytesOf(base64))).toEqual(request);
    if (name !== 'text in two chunks') expect(base64Of(encodePassRequest(request))).toBe(base64);
  });

  it.each(fixtures('pass-results'))('pass result: $name', ({ base64, json, readOnly }) => {
    const result = decodePassResult(bytesOf(base64));
    expect(passResultToJson(result)).toEqual(json);
    if (readOnly !== true) expect(base64Of(encodePassResult(result))).toBe(base64);
  });

  it.each(fixtures('sample-replies'))('sample reply: $name', ({ base64, json, readOnly }) => {
    const reply = decodeSampleReply(bytesOf(base64));
    expect(reply).toEqual(sampleReplyFromJson(json));
    if (readOnly !== true) expect(base64Of(encodeSampleReply(reply))).toBe(base64);
  });

  it.each(fixtures<{ name: string; base64: string; says: string }>('refused-requests'))('refused: $name', ({ base64, says }) => {
    expect(() => decodePassRequest(bytesOf(base64))).toThrow(WireError);
    expect(() => decodePassRequest(bytesOf(base64))).toThrow(says);
  });
});

describe('a pass request that is written another way', () => {
  it('has its fields in any order, unknown ones among them, and the last of several stands', () => {
    // forward_only, an unknown varint, 4 and 8 bytes and a stretch, seq_id twice, model_id.
    const bytes = hex('3001 7807 7d01020304 79 0102030405060708 7a03616263 1005 1009 0a016d');
    expect(decodePassRequest(bytes)).toMatchObject({ modelId: 'm', seqId: 9, forwardOnly: true });
  });

  it('has a shape packed, unpacked, or both', () => {
    const tensor = (shape: string) => `1801 0a08 0000803f 00000040 ${shape}`;
    const request = (shape: string) => {
      const value = hex(tensor(shape)).toString('hex');
      const size = (text: string) => (text.length / 2).toString(16).padStart(2, '0');
      const entry = `0a0177 12${size(value)}${value}`.replaceAll(' ', '');
      const datum = `0a02 0a00 12${size(entry)}${entry}`.replaceAll(' ', '');
      return decodePassRequest(hex(`1a${size(datum)}${datum}`)).data[0]!.inputs['w'];
    };
    const expected = { dtype: 'float32', data: Float32Array.of(1, 2), shape: [1, 2] };
    expect(request('22020102')).toEqual(expected);
    expect(request('2001 2002')).toEqual(expected);
    expect(request('2001 220102')).toEqual(expected);
  });

  const [old, newer] = ['2a0c 0a0178 11 000000000000f03f', '3a0e 0a0178 1209 09 0000000000000040'];
  it.each<[string, string, Partial<PassRequest>]>([
    ['has an entry with its value before its key', '2a0c 11 000000000000f03f 0a0178', { lossSettings: { x: 1 } }],
    ['has its settings where newer clients write them, which then count alone', old + newer, { lossSettings: { x: 2 } }],
    ['keeps a byte order mark, which is part of its text', '0a04 efbbbf6d', { modelId: '\ufeffm' }],
  ])('%s', (_, bytes, request) => {
    expect(decodePassRequest(hex(bytes))).toMatchObject(request);
  });

  it('takes the last of a chunk’s kinds', () => {
    expect(decodePassRequest(hex('1a0c 0a0a 1200 0a06 0a04 07000000')).data[0]!.tokens).toEqual(Int32Array.of(7));
    expect(() => decodePassRequest(hex('1a0c 0a0a 0a06 0a04 07000000 1200'))).toThrow('found image');
  });
});

describe('a body that is no pass request', () => {
  it.each([
    ['a varint cut short', '1080', 'the body: expected a varint in field 2, found the end of the message'],
    ['a varint of eleven bytes', '10 8080808080808080808001', 'expected varints of at most 64 bits, found a longer one'],
    ['a number of more than 32 bits', '10 8080808010', 'seq_id: expected an integer of 32 bits, found a greater one'],
    ['a negative number', '10 ffffffffffffffffff01', 'seq_id: expected 1 or more, or nothing, found -1'],
    ['a length beyond the end', '0a056d', 'expected a stretch of bytes in field 1, found the end of the message'],
    ['a length one beyond the end', '0a026d', 'found the end of the message'],
    ['a vast length', '1a ffffffffffffffffff01', 'expected a stretch of bytes in field 3'],
    ['an inner length beyond its end', '1a02 0a05 7a0378797a', 'data[0]: expected a stretch of bytes in field 1, found the end'],
    ['another wire type', '0a016d 12016d', 'seq_id: expected a varint, found a stretch of bytes'],
    ['field 0', '0001', 'the body: expected a field, found a tag that no field has'],
    ['a group', '7b7c', 'the body: expected a field, found wire type 3'],
    ['text that is no UTF-8', '0a01ff', 'model_id: expected UTF-8 text, found 1 bytes that are not'],
    ['half an id', '1a07 0a05 0a03 0a0100', 'data[0].model_input.chunks[0].tokens: expected numbers of 4 bytes'],
  ])('%s', (_, bytes, says) => {
    expect(() => decodePassRequest(hex(bytes))).toThrow(WireError);
    expect(() => decodePassRequest(hex(bytes))).toThrow(says);
  });

  it('has no more rows than any batch', () => {
    expect(() => decodePassRequest(Buffer.from('1a040a020a00'.repeat(65_537), 'hex'))).toThrow('expected at most 65536 fields');
  });

  it('has no more chunks in a row than any text', () => {
    const chunks = '0a020a00'.repeat(65_537);
    const length = Buffer.from([0x84, 0x80, 0x10]).toString('hex');
    expect(() => decodePassRequest(Buffer.from(`1a${length}${chunks}`, 'hex'))).toThrow('data[0]: expected at most 65536 fields');
  });
});

describe('names', () => {
  const names = Array.from({ length: 1025 }, (_, i) => `n${i}`);
  const request: PassRequest = { modelId: 'm', seqId: 1, data: [], loss: 'ppo', lossSettings: {}, forwardOnly: false };

  it('of settings are few', () => {
    const lossSettings = Object.fromEntries(names.map((name) => [name, 1]));
    expect(() => decodePassRequest(encodePassRequest({ ...request, lossSettings }))).toThrow('at most 1024 names');
  });

  it('of inputs are few', () => {
    const one = { dtype: 'float32', data: Float32Array.of(1) } as const;
    const data = [{ tokens: Int32Array.of(1), inputs: Object.fromEntries(names.map((name) => [name, one])) }];
    expect(() => decodePassRequest(encodePassRequest({ ...request, data }))).toThrow('at most 1024 names');
  });
});

describe('a pass result', () => {
  const outputs = [{ logprobs: { dtype: 'float32', data: Float32Array.of(-1, -2) } }] as const;
  const encoded = (): Uint8Array => encodePassResult({ outputType: '', outputs, metrics: {} });
  const withOffsets = (start: number, end: number): Uint8Array => {
    const bytes = encoded();
    const at = Buffer.from(bytes).indexOf(hex('1210')) + 2;
    new DataView(bytes.buffer).setBigInt64(at, BigInt(start), true);
    new DataView(bytes.buffer).setBigInt64(at + 8, BigInt(end), true);
    return bytes;
  };

  it('gives each datum the numbers between its offsets', () => {
    expect(decodePassResult(withOffsets(0, 8)).outputs).toEqual(outputs);
    expect(decodePassResult(withOffsets(4, 8)).outputs[0]!['logprobs']!.data).toEqual(Float32Array.of(-2));
  });

  it.each([
    [0, 12],
    [8, 4],
    [-4, 8],
    [2, 6],
    [0, 6],
  ])('is refused where offsets go from %i to %i of 8 bytes', (start, end) => {
    expect(() => decodePassResult(withOffsets(start, end))).toThrow(WireError);
  });

  it('is refused where the number of datums is another than the fields have', () => {
    const bytes = encoded();
    bytes[bytes.length - 1] = 2;
    expect(() => decodePassResult(bytes)).toThrow('expected one for each of 2, found 1');
  });

  it('is refused where it tells of more datums than any batch has, without numbers for them', () => {
    expect(() => decodePassResult(hex('1204 18ffff7f'))).toThrow('at most 65536');
  });

  it('is not written where datums have different fields', () => {
    const other = [...outputs, { weights: outputs[0].logprobs }];
    expect(() => encodePassResult({ outputType: '', outputs: other, metrics: {} })).toThrow(
      'loss_fn_outputs[1]: expected the fields of the first (logprobs float32 []), found "weights float32 []"',
    );
  });
});

describe('a sample reply', () => {
  it('is refused where a log-probability is missing, and has none where a server left them empty', () => {
    expect(() => decodeSampleReply(hex('0a10 1208 0100000002000000 1a04 00000000'))).toThrow(
      'sequences[0].logprobs: expected one for each of 2 tokens, found 1',
    );
    expect(decodeSampleReply(hex('0a08 1204 01000000 1a00')).sequences[0]!.logprobs).toBeUndefined();
  });

  it('is refused with a reason for its end that nobody knows', () => {
    expect(() => decodeSampleReply(hex('0a02 0802'))).toThrow(
      'sequences[0].stop_reason: expected stop (0) or length (1), found 2',
    );
  });
});

describe('what cannot be said is not written', () => {
  const request: PassRequest = { modelId: 'm', seqId: 1, data: [], loss: 'ppo', lossSettings: {}, forwardOnly: false };

  it.each([0, -1, 1.5, 2 ** 31])('a seq_id of %d', (seqId) => {
    expect(() => encodePassRequest({ ...request, seqId })).toThrow('seq_id: expected 1 to 2147483647');
  });

  it('half a character', () => {
    expect(() => encodePassRequest({ ...request, modelId: 'a\ud800' })).toThrow('model_id: expected text');
  });

  it('a shape of another size', () => {
    const inputs = { weights: { dtype: 'float32', data: Float32Array.of(1), shape: [2] } } as const;
    expect(() => encodePassRequest({ ...request, data: [{ tokens: Int32Array.of(1), inputs }] })).toThrow(
      'data[0].loss_fn_inputs.weights.shape: expected a shape of 1 numbers, found [2]',
    );
  });
});
