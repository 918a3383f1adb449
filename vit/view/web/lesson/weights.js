// The weights of a model out of the bytes that `vit.view.lesson_weights` packed. No DOM here.

/** @import { PackedTensor } from "../types" */

/**
 * Bytes that a browser's own zlib inflates.
 *
 * @param {Uint8Array} bytes
 */
export async function inflated(bytes) {
  const stream = new Blob([/** @type {any} */ (bytes)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/**
 * Every tensor by its name: whole numbers times the step of their row.
 *
 * The bytes are float32 numbers, of tensors that are not rounded and of all steps, then the lowest byte of every whole
 * number, then the middle ones, then the highest: alike bytes lie together, which zlib needs.
 *
 * @param {PackedTensor[]} tensors in the order of their numbers
 * @param {number} middle that stands for 0
 * @param {Uint8Array} bytes inflated
 */
export function readWeights(tensors, middle, bytes) {
  const count = tensors.reduce((sum, { rows, cols, rounded }) => sum + (rounded ? rows : rows * cols), 0);
  const exact = new Float32Array(bytes.buffer, bytes.byteOffset, count);
  const planes = bytes.subarray(4 * count);
  const whole = planes.length / 3;
  let at = 0, next = 0; // in the exact numbers, in the whole ones
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
