// Matrices in one block of memory, and the operations of a forward pass on them. No DOM access.

import { gelu, layerNorm, softmax } from "./layers.js";
import { TILE_COLS, TILE_ROWS, moduleBytes } from "./machine_code.js";

/** @type {(count: number, of: number) => number} */
const roundUp = (count, of) => Math.ceil(count / of) * of;

/**
 * A matrix in row-major order: entry (r, c) is numbers[at + r * stride + c] of its workspace.
 *
 * @typedef {{ at: number, rows: number, cols: number, stride: number }} Matrix
 */

/**
 * A right-hand matrix in panels of eight columns: the eight entries of row 0, then of row 1, and so on, so that the
 * product reads memory sequentially.
 *
 * @typedef {{ at: number, inner: number, cols: number }} Panels
 */

/**
 * Reference implementation of the product of machine_code.js, also used without WebAssembly SIMD.
 *
 * @param {Float32Array} numbers
 */
const plainProduct = (numbers) =>
  /** @type {(...args: number[]) => void} */
  ((a, aStride, w, bias, out, outStride, rows, inner, panels) => {
    [a, aStride, w, bias, out, outStride] = [a, aStride, w, bias, out, outStride].map((address) => address / 4);
    for (let panel = 0; panel < panels; panel++)
      for (let r = 0; r < rows; r++)
        for (let c = 0; c < TILE_COLS; c++) {
          let sum = numbers[bias + panel * TILE_COLS + c];
          for (let i = 0, from = w + panel * inner * TILE_COLS + c; i < inner; i++, from += TILE_COLS)
            sum += numbers[a + r * aStride + i] * numbers[from];
          numbers[out + r * outStride + panel * TILE_COLS + c] = sum;
        }
  });

/** An arena from which matrices are allocated one after another. */
export class Workspace {
  /**
   * @param {number} capacity capacity in numbers
   * @param {boolean} [plain] do not use WebAssembly
   */
  constructor(capacity, plain = false) {
    this.used = 0;
    this.engine = "WebAssembly";
    try {
      if (plain) throw new Error("no machine code");
      const memory = new WebAssembly.Memory({ initial: Math.ceil((4 * capacity) / 65536) });
      const instance = new WebAssembly.Instance(new WebAssembly.Module(moduleBytes()), { js: { memory } });
      this.numbers = new Float32Array(memory.buffer);
      this.run = /** @type {(...args: number[]) => void} */ (instance.exports.product);
    } catch { // WebAssembly or its SIMD instructions are not supported
      this.numbers = new Float32Array(capacity);
      this.run = plainProduct(this.numbers);
      this.engine = "JavaScript";
    }
  }

  /** Allocate zeros; returns their index. @param {number} count */
  reserve(count) {
    const at = this.used;
    this.used = roundUp(at + count, 4);
    if (this.used > this.numbers.length) throw new Error(`no room for ${count} numbers`);
    return at;
  }

  /**
   * Allocate a matrix of zeros, padded because the product writes whole tiles.
   *
   * @param {number} rows
   * @param {number} cols
   * @returns {Matrix}
   */
  matrix(rows, cols) {
    const stride = roundUp(cols, TILE_COLS) + TILE_COLS;
    return { at: this.reserve((roundUp(rows, TILE_ROWS) + TILE_ROWS) * stride), rows, cols, stride };
  }

  /**
   * Allocate a right-hand matrix.
   *
   * @param {number} inner
   * @param {number} cols
   * @returns {Panels}
   */
  panels(inner, cols) {
    return { at: this.reserve(inner * roundUp(cols, TILE_COLS)), inner, cols };
  }

  /**
   * Allocate a vector, such as a bias, padded to whole tiles.
   *
   * @param {ArrayLike<number>} values
   */
  vector(values) {
    const at = this.reserve(roundUp(values.length, TILE_COLS));
    this.numbers.set(values, at);
    return at;
  }

  /**
   * Fill panels from an array: entry (i, c) is source[at + i * down + c * right].
   *
   * @param {Panels} panels
   * @param {Float32Array} source
   * @param {number} at
   * @param {number} down
   * @param {number} right
   */
  fill({ at: into, inner, cols }, source, at, down, right) {
    const { numbers } = this;
    for (let c = 0; c < cols; c++) {
      let to = into + Math.floor(c / TILE_COLS) * inner * TILE_COLS + (c % TILE_COLS);
      for (let i = 0, from = at + c * right; i < inner; i++, from += down, to += TILE_COLS) numbers[to] = source[from];
    }
  }

  /**
   * Compute out = a w + bias; returns out.
   *
   * @param {Matrix} a (rows, at least w.inner)
   * @param {Panels} w (inner, cols)
   * @param {number} bias index of the bias
   * @param {Matrix} out (rows, cols)
   */
  product(a, w, bias, out) {
    const panels = roundUp(w.cols, TILE_COLS) / TILE_COLS;
    this.run(4 * a.at, 4 * a.stride, 4 * w.at, 4 * bias, 4 * out.at, 4 * out.stride, roundUp(a.rows, TILE_ROWS), w.inner, panels);
    return out;
  }

  /** Apply softmax, after multiplying by a factor, to every row in place. @param {Matrix} x @param {number} factor above 0 */
  softmax(x, factor) {
    for (let row = 0; row < x.rows; row++) softmax(this.numbers, x.at + row * x.stride, x.cols, factor);
  }

  /** Apply GELU to every number in place. @param {Matrix} x */
  gelu(x) {
    for (let row = 0; row < x.rows; row++) gelu(this.numbers, x.at + row * x.stride, x.cols);
  }

  /**
   * Apply LayerNorm to every row.
   *
   * @param {Matrix} x
   * @param {number} scale index of the scales
   * @param {number} shift index of the shifts
   * @param {number} eps
   * @param {Matrix} out
   */
  norm(x, scale, shift, eps, out) {
    for (let row = 0; row < x.rows; row++)
      layerNorm(this.numbers, x.at + row * x.stride, x.cols, scale, shift, eps, out.at + row * out.stride);
  }

  /**
   * Compute out = x + other; out may be x or other.
   *
   * @param {Matrix} x
   * @param {Matrix} other
   * @param {Matrix} out
   */
  add(x, other, out) {
    const { numbers } = this;
    for (let row = 0; row < x.rows; row++)
      for (let i = 0; i < x.cols; i++)
        numbers[out.at + row * out.stride + i] = numbers[x.at + row * x.stride + i] + numbers[other.at + row * other.stride + i];
  }

  /**
   * Compute one row of a product in JavaScript.
   *
   * @param {ArrayLike<number>} row (inner)
   * @param {Panels} w (inner, cols)
   * @param {number} bias index of the bias
   */
  rowProduct(row, { at, inner, cols }, bias) {
    const { numbers } = this;
    return Float32Array.from({ length: cols }, (_, c) => {
      let sum = numbers[bias + c];
      const from = at + Math.floor(c / TILE_COLS) * inner * TILE_COLS + (c % TILE_COLS);
      for (let i = 0; i < inner; i++) sum += row[i] * numbers[from + i * TILE_COLS];
      return sum;
    });
  }

  /**
   * Return a view of one row of a matrix.
   *
   * @param {Matrix} matrix
   * @param {number} row
   */
  row({ at, stride, cols }, row) {
    return this.numbers.subarray(at + row * stride, at + row * stride + cols);
  }
}
