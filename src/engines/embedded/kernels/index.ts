/**
 * What the WASM module exports: stateless operations on addresses in the one shared memory, apart from the packing scratch each
 * instance is given. The kernels know nothing of models, and check no bounds: the caller's plan of the memory is the only guard.
 */
export {
  gatherPacked, gemm, gemmPacked, gemmPackedTransposed, gemmScratchFloats, packedFloats, packMatrix, setGemmScratch,
} from './gemm';
export { setWide } from './tile';
export {
  addToRows, copyFloats, fillZero, gatherRows, headNorm, headNormBackward, rmsNorm, rmsNormBackward, rope, scaleFloats, scatterAddRows,
  sumRows, swiglu, swigluBackward,
} from './elementwise';
export { attentionBackward, attentionForward, attentionScratchFloats } from './attention';
export { logProbabilities, logProbabilitiesBackward } from './head';
export { attendScratchFloats, keyFloats, valueFloats } from './attend';
export { cachedAttention, copyPage, drawTokens, storeCacheRows } from './decode';
export { adamW, sumLanes } from './optimizer';

/** First byte after the module's own constant tables; the shared arena must start at or after it. */
export function staticEnd(): usize {
  return __heap_base;
}
