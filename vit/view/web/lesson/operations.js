// What a forward pass is made of: operations on matrices of a workspace. No DOM here.

import { gelu, layerNorm, softmax } from "./layers.js";

/** @import { Matrix, Panels, Workspace } from "./workspace.js" */

/** The operations, each computed at once. */
export class Operations {
  /** @param {Workspace} space */
  constructor(space) {
    this.space = space;
  }

  /**
   * out = a w + bias.
   *
   * @param {Matrix} a (rows, at least w.inner)
   * @param {Panels} w (inner, cols)
   * @param {number} bias where it lies
   * @param {Matrix} out (rows, cols)
   */
  product(a, w, bias, out) {
    this.space.product(a, w, bias, out);
  }

  /**
   * Fill panels from numbers of the workspace: entry (i, c) is numbers[at + i * down + c * right].
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
   * Softmax of every row times a factor, in place.
   *
   * @param {Matrix} x
   * @param {number} factor above 0
   */
  softmax(x, factor) {
    for (let row = 0; row < x.rows; row++) softmax(this.space.numbers, x.at + row * x.stride, x.cols, factor);
  }

  /**
   * GELU of every number, in place.
   *
   * @param {Matrix} x
   */
  gelu(x) {
    for (let row = 0; row < x.rows; row++) gelu(this.space.numbers, x.at + row * x.stride, x.cols);
  }

  /**
   * LayerNorm of every row.
   *
   * @param {Matrix} x
   * @param {number} scale where it lies
   * @param {number} shift
   * @param {number} eps
   * @param {Matrix} out
   */
  norm(x, scale, shift, eps, out) {
    for (let row = 0; row < x.rows; row++)
      layerNorm(this.space.numbers, x.at + row * x.stride, x.cols, scale, shift, eps, out.at + row * out.stride);
  }

  /**
   * out = x + other, which may be one of the two.
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
