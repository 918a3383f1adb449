// The operations of a forward pass, on matrices of a workspace. No DOM access.

import { gelu, layerNorm, softmax } from "./layers.js";

/** @import { Matrix, Panels, Workspace } from "./workspace.js" */

/** Operations that read and write matrices of one workspace. */
export class Operations {
  /** @param {Workspace} space */
  constructor(space) {
    this.space = space;
  }

  /**
   * Compute out = a w + bias.
   *
   * @param {Matrix} a (rows, at least w.inner)
   * @param {Panels} w (inner, cols)
   * @param {number} bias index of the bias
   * @param {Matrix} out (rows, cols)
   */
  product(a, w, bias, out) {
    this.space.product(a, w, bias, out);
  }

  /**
   * Fill panels from the workspace: entry (i, c) is numbers[at + i * down + c * right].
   *
   * @param {Panels} panels
   * @param {number} at
   * @param {number} down
   * @param {number} right
   */
  fill(panels, at, down, right) {
    this.space.fill(panels, this.space.numbers, at, down, right);
  }

  /**
   * Apply softmax, after multiplying by a factor, to every row in place.
   *
   * @param {Matrix} x
   * @param {number} factor above 0
   */
  softmax(x, factor) {
    for (let row = 0; row < x.rows; row++) softmax(this.space.numbers, x.at + row * x.stride, x.cols, factor);
  }

  /**
   * Apply GELU to every number in place.
   *
   * @param {Matrix} x
   */
  gelu(x) {
    for (let row = 0; row < x.rows; row++) gelu(this.space.numbers, x.at + row * x.stride, x.cols);
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
      layerNorm(this.space.numbers, x.at + row * x.stride, x.cols, scale, shift, eps, out.at + row * out.stride);
  }

  /**
   * Compute out = x + other; out may be x or other.
   *
   * @param {Matrix} x
   * @param {Matrix} other
   * @param {Matrix} out
   */
  add(x, other, out) {
    const { numbers } = this.space;
    for (let row = 0; row < x.rows; row++)
      for (let i = 0; i < x.cols; i++)
        numbers[out.at + row * out.stride + i] = numbers[x.at + row * x.stride + i] + numbers[other.at + row * other.stride + i];
  }
}
