// A forward pass as a list of commands for the kernels of kernels.js. No DOM here.

import { FIELDS, SIDE, TILE } from "./kernels.js";

/** @import { Matrix } from "./workspace.js" */
/** @import { Steps } from "./transformer.js" */

export const DISTANCE = 256; // bytes from the fields of one command to those of the next, as WebGPU wants it

/** @typedef {{ kernel: string, fields: Partial<Record<typeof FIELDS[number], number>>, groups: [number, number] }} Command */

/** Takes the place of operations.js in a pass, and computes nothing. */
export class Recorder {
  constructor() {
    /** @type {Command[]} */
    this.commands = [];
  }

  /** The fields of all commands, as kernels read them. */
  get table() {
    const table = new DataView(new ArrayBuffer(DISTANCE * this.commands.length));
    this.commands.forEach(({ fields }, number) =>
      FIELDS.forEach((name, place) => {
        const at = DISTANCE * number + 4 * place, value = fields[name] ?? 0;
        if (name === "factor") table.setFloat32(at, value, true);
        else table.setUint32(at, value, true);
      }),
    );
    return table;
  }

  /**
   * @param {string} kernel
   * @param {Command["fields"]} fields
   * @param {number} x workgroups along the columns
   * @param {number} y workgroups along the rows
   */
  record(kernel, fields, x, y) {
    this.commands.push({ kernel, fields, groups: [Math.ceil(x), Math.ceil(y)] });
  }

  /** @type {Steps["product"]} */
  product(a, w, bias, out) {
    const { rows } = a, { cols, inner } = w;
    this.record("product", { ...left(a), b: w.at, c: bias, ...into(out), rows, cols, inner }, cols / TILE / SIDE, rows / TILE / SIDE);
  }

  /** @type {Steps["fill"]} */
  fill({ at: out, inner: rows, cols }, a, down, right) {
    this.record("fill", { a, a_stride: down, b_stride: right, out, rows, cols }, cols / SIDE, rows / SIDE);
  }

  /** @type {Steps["softmax"]} */
  softmax(x, factor) {
    this.record("softmax", { ...into(x), factor }, 1, x.rows);
  }

  /** @type {Steps["gelu"]} */
  gelu(x) {
    this.record("gelu", into(x), x.cols / SIDE, x.rows / SIDE);
  }

  /** @type {Steps["norm"]} */
  norm(x, scale, shift, eps, out) {
    this.record("norm", { ...into(out), ...left(x), b: scale, c: shift, factor: eps }, 1, x.rows);
  }

  /** @type {Steps["add"]} */
  add(x, other, out) {
    this.record("add", { ...into(out), ...left(x), b: other.at, b_stride: other.stride }, x.cols / SIDE, x.rows / SIDE);
  }
}

/** @type {(matrix: Matrix) => Command["fields"]} */
const left = ({ at, stride, rows, cols }) => ({ a: at, a_stride: stride, rows, cols });
/** @type {(matrix: Matrix) => Command["fields"]} */
const into = ({ at, stride, rows, cols }) => ({ out: at, out_stride: stride, rows, cols });
