/**
 * From logits to log-probabilities of given tokens and back, row by row, each row at its own temperature.
 */
import { at, expRow, maxOfRow, scaleRow } from './simd';

/** logprobs[r] = log softmax(logits[r] · inverseTemperature[r])[targets[r]]. Logits become e^(…), whose sums are kept too. */
export function logProbabilities(
  logits: usize, rows: i32, vocabulary: i32, targets: usize, inverseTemperatures: usize, logprobs: usize, sums: usize,
): void {
  for (let r = 0; r < rows; r++) {
    const row = at(logits, r * vocabulary);
    const scale = load<f32>(at(inverseTemperatures, r));
    const chosen = load<f32>(at(row, load<i32>(at(targets, r))));
    const top = maxOfRow(row, vocabulary);
    const sum = expRow(row, vocabulary, scale, top);
    store<f32>(at(sums, r), sum);
    store<f32>(at(logprobs, r), <f32>(<f64>scale * (<f64>chosen - <f64>top) - Math.log(<f64>sum)));
  }
}

/** What `logProbabilities` left in `logits` and `sums` becomes d loss / d logits, given d loss / d logprob of each row's target. */
export function logProbabilitiesBackward(
  logits: usize, rows: i32, vocabulary: i32, targets: usize, inverseTemperatures: usize, slopes: usize, sums: usize,
): void {
  for (let r = 0; r < rows; r++) {
    const row = at(logits, r * vocabulary);
    const slope = load<f32>(at(slopes, r)) * load<f32>(at(inverseTemperatures, r));
    scaleRow(row, -slope / load<f32>(at(sums, r)), vocabulary);
    const target = at(row, load<i32>(at(targets, r)));
    store<f32>(target, load<f32>(target) + slope);
  }
}
