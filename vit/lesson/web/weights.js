// Decodes the weights that `vit.lesson.weights` packed. No DOM access.

/** @import { PackedTensor } from "./types" */

/**
 * Return the tensors by name. Rounded tensors are integers times a step per row.
 *
 * Layout: float32 values of the unrounded tensors and all steps, then the low bytes of all integers, their middle
 * bytes, their high bytes. Grouping bytes of equal significance improves zlib's compression.
 *
 * @param {PackedTensor[]} tensors in the order of their values
 * @param {number} middle integer that encodes 0
 * @param {Uint8Array} bytes decompressed
 */
export function readWeights(tensors, middle, bytes) {
  const count = tensors.reduce((sum, { rows, cols, rounded }) => sum + (rounded ? rows : rows * cols), 0);
  const exact = new Float32Array(bytes.buffer, bytes.byteOffset, count);
  const planes = bytes.subarray(4 * count);
  const whole = planes.length / 3;
  let at = 0, next = 0; // index into `exact`, index into the integers
  return new Map(
    tensors.map(({ name, rows, cols, rounded }) => {
      if (!rounded) return [name, exact.subarray(at, (at += rows * cols))];
      const numbers = new Float32Array(rows * cols);
      for (let i = 0; i < numbers.length; ) {
        const step = exact[at++];
        for (const end = i + cols; i < end; i++, next++)
          numbers[i] = (planes[next] + 256 * planes[whole + next] + 65536 * planes[2 * whole + next] - middle) * step;
      }
      return [name, numbers];
    }),
  );
}
