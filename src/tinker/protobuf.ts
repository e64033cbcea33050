/** Passes and samples as protobuf. */
import type { Datum, PassRequest, PassResult, SampleReply } from './types.ts';

const later = (): never => {
  throw new Error('not yet written');
};
export const encodePassRequest: (request: PassRequest) => Uint8Array<ArrayBuffer> = later;
export const decodePassRequest: (bytes: Uint8Array) => PassRequest = later;
export const encodePassResult: (result: PassResult) => Uint8Array<ArrayBuffer> = later;
export const decodePassResult: (bytes: Uint8Array) => PassResult = later;
export const encodeSampleReply: (reply: SampleReply) => Uint8Array<ArrayBuffer> = later;
export const decodeSampleReply: (bytes: Uint8Array) => SampleReply = later;
/** Bytes that a datum adds to a request. */
export const estimatedBytes: (datum: Datum) => number = later;
