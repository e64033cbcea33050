/** What one request, one model and the whole Tinker server may cost, and how long it waits. */
const MiB = 1024 * 1024;

/** Published in docs/reference/tinker-server.md, which a test keeps equal to this. */
export const TINKER_LIMITS = {
  /** Of a body, before and after decompression. */
  bodyBytes: 64 * MiB,
  /** Of a JSON body: parsing it blocks the event loop. Batches that are larger come as protobuf. */
  jsonBytes: 16 * MiB,
  /** Of a JSON body that is neither a pass nor a sample: checking it costs far more than parsing it. */
  smallJsonBytes: 256 * 1024,
  /** Bodies of requests that were taken and not yet carried out. */
  waitingBytes: 512 * MiB,
  /** Datums in one forward_backward. */
  data: 4096,
  /** Models in training at once. */
  models: 8,
  /** Sets of weights that are sampled from at once. */
  samplers: 4,
  /** Sequences being sampled, from which on requests wait; those of a session that has none under way do not. */
  sequences: 128,
  /** Sequences of one sample request. */
  samples: 256,
  /** Sample requests taken and not yet answered. */
  samplesWaiting: 10_000,
  /** Unnamed sets of sampler weights kept for each model. */
  unnamed: 8,
  /** Results that nobody asked for yet, or might ask for again. */
  resultBytes: 256 * MiB,
} as const;

/** Milliseconds. */
export const WAITS = {
  /** How long `retrieve_future` waits for a result before it says to ask again. */
  poll: 30_000,
  /** How long a request waits for the seq_id before its own. */
  gap: 60_000,
  /** How long weights are sampled from, at least, before others that are waited for take their place. */
  turn: 1000,
  /** How long a result is kept. */
  result: 30 * 60_000,
  /** How long a session lives without a sign of life. */
  session: 10 * 60_000,
  /** After how long without one its samples are held back, and its models make room for others where there is none. */
  silence: 60_000,
};
export type Waits = Readonly<typeof WAITS>;
