/**
 * Where a model's weights come from: a folder of safetensors files or a GGUF file. Tensors have Hugging Face's names and orientation
 * ([outputs, inputs], row-major), whatever the file calls them, and are read a few rows at a time as float32: no model is ever held twice.
 */

export interface ModelSource extends AsyncDisposable {
  /** For messages. */
  readonly path: string;
  /** The fields of config.json; a GGUF's metadata in the same names. */
  readonly fields: Readonly<Record<string, unknown>>;
  /** The shape of every tensor, by name. */
  readonly shapes: ReadonlyMap<string, readonly number[]>;
  /** What the file says beside the tensors; safetensors metadata, for instance. */
  readonly metadata: Readonly<Record<string, string>>;
  /** Rows `first` to `first + count` of a matrix, or entries of a vector. Throws MODEL_INVALID if the file does not hold them. */
  rows(name: string, first: number, count: number): Promise<Float32Array>;
}
