/** Every message in both forms: what is written is read back the same, and bytes of any kind are read or refused, never worse. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { WireError } from './codec.ts';
import {
  decodePassRequest,
  decodePassResult,
  decodeSampleReply,
  encodedBytes,
  encodePassRequest,
  encodePassResult,
  encodeSampleReply,
} from './protobuf.ts';
import {
  passRequestFromJson,
  passRequestToJson,
  passResultFromJson,
  passResultToJson,
  sampleReplyFromJson,
  sampleReplyToJson,
} from './tinker-json.ts';
import type { Datum, PassRequest, PassResult, SampleReply, Tensor } from './tinker-messages.ts';

const text = fc.string({ unit: 'grapheme', maxLength: 12 });
const name = fc.oneof(fc.constantFrom('target_tokens', 'logprobs', '__proto__', 'constructor'), text);
const int32s = (min = 0, max = 40) => fc.int32Array({ minLength: min, maxLength: max });
/** −0 is left out: JSON text has none. */
const float32 = fc.float({ noNaN: true, noDefaultInfinity: true }).map((value) => value + 0);
const float32s = (min = 0, max = 40) =>
  fc.array(float32, { minLength: min, maxLength: max }).map((all) => Float32Array.from(all));
const double = fc.double({ noNaN: true, noDefaultInfinity: true }).map((value) => value + 0);
const numbers = fc.array(fc.tuple(name, double), { maxLength: 3 }).map((all) => Object.fromEntries(all));

function withShape<T extends Tensor>(tensor: T, kind: number): T {
  if (kind === 0) return tensor;
  return { ...tensor, shape: kind === 1 ? [tensor.data.length] : [tensor.data.length, 1, 1] };
}
const tensor: fc.Arbitrary<Tensor> = fc.oneof(
  fc.tuple(int32s(), fc.nat(2)).map(([data, kind]) => withShape({ dtype: 'int64', data }, kind)),
  fc.tuple(float32s(), fc.nat(2)).map(([data, kind]) => withShape({ dtype: 'float32', data }, kind)),
);
const datum: fc.Arbitrary<Datum> = fc.record({
  tokens: int32s(),
  inputs: fc.array(fc.tuple(name, tensor), { maxLength: 4 }).map((all) => Object.fromEntries(all)),
});
const passRequest: fc.Arbitrary<PassRequest> = fc.record({
  modelId: text,
  seqId: fc.oneof(fc.constant(undefined), fc.integer({ min: 1, max: 2 ** 31 - 1 })),
  data: fc.array(datum, { maxLength: 4 }),
  loss: text,
  lossSettings: numbers,
  forwardOnly: fc.boolean(),
});

/** Datums have the same names, and each field is of one kind. */
const passResult: fc.Arbitrary<PassResult> = fc
  .uniqueArray(fc.tuple(name, fc.boolean()), { maxLength: 3, selector: ([key]) => key })
  .chain((names) =>
    fc.record({
      outputType: text,
      outputs: fc.array(
        fc
          .tuple(...names.map(([, isInt]) => (isInt ? int32s() : float32s())))
          .map((all) => Object.fromEntries(all.map((data, i) => [names[i]![0], tensorOf(data)]))),
        { maxLength: 5 },
      ),
      metrics: numbers,
    }),
  );
const tensorOf = (data: Int32Array | Float32Array): Tensor =>
  data instanceof Int32Array ? { dtype: 'int64', data } : { dtype: 'float32', data };

const sequence = fc
  .tuple(fc.constantFrom('stop' as const, 'length' as const), float32s(), fc.boolean())
  .chain(([stopReason, logprobs, has]) =>
    int32s(logprobs.length, logprobs.length).map((tokens) => ({ stopReason, tokens, logprobs: has ? logprobs : undefined })),
  );
const promptLogprobs = fc
  .array(fc.oneof(float32, fc.constant(Number.NaN)), { minLength: 1, maxLength: 20 })
  .map((all) => Float32Array.from(all));
const sampleReply: fc.Arbitrary<SampleReply> = fc.record(
  { sequences: fc.array(sequence, { maxLength: 4 }), promptLogprobs },
  { requiredKeys: ['sequences'] },
);
const throughText = (value: unknown): unknown => JSON.parse(JSON.stringify(value));
const check = <T>(arbitrary: fc.Arbitrary<T>, hold: (value: T) => void, numRuns = 200) =>
  fc.assert(fc.property(arbitrary, hold), { numRuns });

describe('what is written is read back the same', () => {
  it('pass requests', () => {
    check(passRequest, (request) => {
      expect(decodePassRequest(encodePassRequest(request))).toEqual(request);
      expect(passRequestFromJson(throughText(passRequestToJson(request)), request.forwardOnly)).toEqual(withAllShapes(request));
    });
  });

  it('pass results', () => {
    check(passResult, (result) => {
      expect(decodePassResult(encodePassResult(result))).toEqual(result);
      expect(passResultFromJson(throughText(passResultToJson(result))).outputs).toEqual(result.outputs.map(shaped));
    });
  });

  it('sample replies', () => {
    check(sampleReply, (reply) => {
      expect(decodeSampleReply(encodeSampleReply(reply))).toEqual(reply);
      expect(sampleReplyFromJson(throughText(sampleReplyToJson(reply)))).toEqual(reply);
    });
  });

  it('from any offset of a larger buffer, and into memory of its own', () => {
    check(fc.tuple(passRequest, fc.nat(9)), ([request, offset]) => {
      const bytes = encodePassRequest(request);
      const larger = Buffer.alloc(bytes.length + offset + 5, 0xff);
      larger.set(bytes, offset);
      const read = decodePassRequest(larger.subarray(offset, offset + bytes.length));
      larger.fill(0xff);
      expect(read).toEqual(request);
    });
  });
});

it('a datum’s size is what it adds to a request', () => {
  check(fc.tuple(passRequest, datum), ([request, more]) => {
    const longer = { ...request, data: [...request.data, more] };
    expect(encodePassRequest(longer).length - encodePassRequest(request).length).toBe(encodedBytes(more));
  });
});

describe('bytes that are no message', () => {
  const decoders = [decodePassRequest, decodePassResult, decodeSampleReply];

  it('are read or refused with a WireError, never with anything else', () => {
    check(fc.uint8Array({ maxLength: 80 }), readOrRefused, 2000);
  });

  it('and so are messages with bytes changed, cut, or doubled', () => {
    const valid = fc.oneof(
      passRequest.map(encodePassRequest),
      passResult.map(encodePassResult),
      sampleReply.map(encodeSampleReply),
    );
    const change = fc.record({ at: fc.nat(), byte: fc.nat(255), cut: fc.nat(), doubled: fc.boolean() });
    check(fc.tuple(valid, fc.array(change, { minLength: 1, maxLength: 4 })), ([bytes, changes]) => {
      let changed = Uint8Array.from(bytes);
      for (const { at, byte, cut, doubled } of changes) {
        if (changed.length === 0) return;
        changed[at % changed.length] = byte;
        if (cut % 4 === 0) changed = changed.slice(0, cut % changed.length);
        if (doubled) changed = Uint8Array.from([...changed, ...changed]);
      }
      readOrRefused(changed);
    });
  });

  function readOrRefused(bytes: Uint8Array): void {
    for (const decode of decoders) {
      try {
        decode(bytes);
      } catch (error) {
        expect(error).toBeInstanceOf(WireError);
      }
    }
  }
});

/** JSON always says the shape. */
function shaped(tensors: Readonly<Record<string, Tensor>>): Readonly<Record<string, Tensor>> {
  return Object.fromEntries(Object.entries(tensors).map(([key, value]) => [key, { shape: [value.data.length], ...value }]));
}

function withAllShapes(request: PassRequest): PassRequest {
  return { ...request, data: request.data.map((row) => ({ ...row, inputs: shaped(row.inputs) })) };
}
