/** The Tinker server's limits on one request, one model and the whole process, and its timeouts. */
const MiB = 1024 * 1024;

/** `npm run build:docs` prints these values into docs/reference/routes.md. */
export const TINKER_LIMITS = {
  /** Bytes of a request body, both before and after decompression. */
  bodyBytes: 64 * MiB,
  /** Bytes of a JSON body. Parsing JSON blocks the event loop, so larger batches must come as protobuf. */
  jsonBytes: 16 * MiB,
  /** Bytes of a JSON body that is neither a pass nor a sample. Validating these costs far more than parsing them. */
  smallJsonBytes: 256 * 1024,
  /** Total bytes of accepted pass bodies that have not run yet. */
  waitingBytes: 512 * MiB,
  /** Datums per forward_backward. */
  data: 4096,
  /** Models in training at the same time. */
  models: 8,
  /** Sets of weights that can be sampled from at the same time. */
  samplers: 4,
  /** Sequences in flight above which requests wait. A session with nothing in flight does not wait. */
  sequences: 128,
  /** Sequences per sample request. */
  samples: 256,
  /** Stop ids or texts per sample request: every text is looked for after every token. */
  stops: 256,
  /** Sample requests accepted but not yet answered. */
  samplesWaiting: 10_000,
  /** Unnamed sets of sampler weights kept per model. */
  unnamed: 8,
  /** Total bytes of finished results kept for clients to fetch. */
  resultBytes: 256 * MiB,
} as const;

/** Milliseconds. */
export const WAITS = {
  /** `retrieve_future` waits this long for a result before it answers "try again". */
  poll: 30_000,
  /** A request waits this long for the request with the preceding seq_id. */
  gap: 60_000,
  /** Minimum time that weights stay loaded for sampling while requests for other weights wait. */
  turn: 1000,
  result: 30 * 60_000,
  /** A session without a heartbeat or request for this long is ended. */
  session: 10 * 60_000,
  /** A session silent for this long has its samples held back, and loses its models if another session needs the room. */
  silence: 60_000,
};
export type Waits = Readonly<typeof WAITS>;
