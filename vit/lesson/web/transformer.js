// The Vision Transformer's forward pass, equivalent to `vit/model/transformer.py`. No DOM access.
//
// Letters as there: N tokens = S prefix tokens + P patches, D width of a token, H heads, K = D / H, M width of the MLP,
// L blocks, C classes. Source: Dosovitskiy et al. 2021, arXiv 2010.11929.

import { layerNorm, softmax } from "./layers.js";
import { Workspace } from "./workspace.js";

/** @import { Matrix, Panels } from "./workspace.js" */
/** @import { Config } from "./types" */

/**
 * @typedef {object} Block weights of a block, and its activations of the last pass
 * @property {number} norm1Scale
 * @property {number} norm1Shift
 * @property {Panels} qkv (D, 3 D)
 * @property {number} qkvBias
 * @property {Panels} proj (D, D)
 * @property {number} projBias
 * @property {number} norm2Scale
 * @property {number} norm2Shift
 * @property {Panels} fc1 (D, M)
 * @property {number} fc1Bias
 * @property {Panels} fc2 (M, D)
 * @property {number} fc2Bias
 * @property {Matrix} x (N, D), residual stream that enters the block
 * @property {Matrix} heads (N, 3 D), per token the queries of all heads, then the keys, then the values
 * @property {Matrix[]} attention H of (N, N): rows query, columns key; rows sum to 1
 */

/** A model with a fixed input size. */
export class VisionTransformer {
  /**
   * @param {Config} config
   * @param {(name: string) => Float32Array} tensor returns a tensor by its key in torch's state dict
   * @param {boolean} [plain] do not use WebAssembly
   */
  constructor(config, tensor, plain = false) {
    this.config = config;
    const { dim, mlp_dim: width, depth, heads, patch_size: side, channels, image_size: size } = config;
    this.rows = size[0] / side;
    this.cols = size[1] / side;
    this.prefix = config.prefix.length; // S
    this.tokens = this.prefix + this.rows * this.cols; // N
    const { tokens } = this;
    /** @type {[number, number]} tokens that the classifier reads: the first, and their number */
    this.classifierTokens = config.pool === "cls" ? [config.prefix.indexOf("cls"), 1] : [this.prefix, tokens - this.prefix];
    const parameters = (4 * dim + 2 * width + 8) * dim + 8 * width + 12 * dim; // numbers per block, with padding
    const activations = (tokens + 8) * (4 * dim + 16 + heads * (tokens + 16));
    const elsewhere = (tokens + 8) * (7 * dim + width + channels * side * side + 80) + channels * side * side * (dim + 8);
    const space = (this.space = new Workspace(depth * (parameters + activations) + elsewhere + 4096, plain));

    /** @type {(name: string, inner: number, cols: number) => Panels} from a (cols, inner) tensor, torch's layout of linear weights */
    const weights = (name, inner, cols) => {
      const panels = space.panels(inner, cols);
      space.fill(panels, tensor(name), 0, 1, inner);
      return panels;
    };
    /** @type {(name: string) => number} */
    const vector = (name) => space.vector(tensor(name));
    this.zeroBias = space.reserve(Math.max(tokens, dim) + 16); // zero bias, for products without one
    this.patchEmbed = weights("patch_embed.weight", channels * side * side, dim);
    this.patchBias = vector("patch_embed.bias");
    this.positions = space.matrix(tokens - this.prefix, dim); // position embeddings of the patches
    this.setRows(this.positions, tensor("pos_embed"));
    /** @type {Block[]} */
    this.blocks = Array.from({ length: depth }, (_, block) => {
      const at = `blocks.${block}`;
      return {
        norm1Scale: vector(`${at}.norm1.weight`),
        norm1Shift: vector(`${at}.norm1.bias`),
        qkv: weights(`${at}.attn.qkv.weight`, dim, 3 * dim),
        qkvBias: vector(`${at}.attn.qkv.bias`),
        proj: weights(`${at}.attn.proj.weight`, dim, dim),
        projBias: vector(`${at}.attn.proj.bias`),
        norm2Scale: vector(`${at}.norm2.weight`),
        norm2Shift: vector(`${at}.norm2.bias`),
        fc1: weights(`${at}.mlp.fc1.weight`, dim, width),
        fc1Bias: vector(`${at}.mlp.fc1.bias`),
        fc2: weights(`${at}.mlp.fc2.weight`, width, dim),
        fc2Bias: vector(`${at}.mlp.fc2.bias`),
        x: space.matrix(tokens, dim),
        heads: space.matrix(tokens, 3 * dim),
        attention: Array.from({ length: heads }, () => space.matrix(tokens, tokens)),
      };
    });
    const [{ x }] = this.blocks;
    this.setRows({ ...x, rows: this.prefix }, tensor("prefix_tokens")); // no pass overwrites these rows
    this.normScale = vector("norm.weight");
    this.normShift = vector("norm.bias");
    this.head = { weight: tensor("head.weight"), bias: tensor("head.bias") }; // (C, D), (C)

    this.patches = space.matrix(tokens - this.prefix, channels * side * side);
    this.normed = space.matrix(tokens, dim);
    this.mixed = space.matrix(tokens, dim);
    this.added = space.matrix(tokens, dim);
    this.hidden = space.matrix(tokens, width);
    this.x = space.matrix(tokens, dim); // residual stream after the last block
    this.keys = space.panels(dim / heads, tokens);
    this.values = space.panels(tokens, dim / heads);
  }

  /**
   * Write rows of a matrix.
   *
   * @param {Matrix} matrix
   * @param {Float32Array} values row by row
   */
  setRows(matrix, values) {
    for (let row = 0; row < matrix.rows; row++)
      this.space.row(matrix, row).set(values.subarray(row * matrix.cols, (row + 1) * matrix.cols));
  }

  /**
   * Run a forward pass. Its activations stay in `blocks` until the next one.
   *
   * @param {Float32Array} pixels (channels, height, width), normalised
   * @returns {Float64Array} probability of each class
   */
  run(pixels) {
    this.patchify(pixels);
    this.forward();
    return this.classify();
  }

  /**
   * Cut the picture into patches.
   *
   * @param {Float32Array} pixels
   */
  patchify(pixels) {
    const { patches, rows, cols, space: { numbers } } = this;
    const { patch_size: side, channels, image_size: [height, width] } = this.config;
    for (let row = 0; row < rows; row++)
      for (let col = 0; col < cols; col++) {
        let to = patches.at + (row * cols + col) * patches.stride;
        for (let channel = 0; channel < channels; channel++)
          for (let y = row * side; y < (row + 1) * side; y++)
            for (let x = col * side; x < (col + 1) * side; x++) numbers[to++] = pixels[(channel * height + y) * width + x];
      }
  }

  /** Compute the residual stream from the patches to the last block. */
  forward() {
    const { blocks, added, space } = this;
    space.product(this.patches, this.patchEmbed, this.patchBias, added);
    space.add(this.positions, added, rowsOf(blocks[0].x, this.prefix, this.positions.rows));
    blocks.forEach((block, index) => {
      const last = index + 1 === blocks.length;
      // After its attention, the last block computes only the tokens that the classifier reads.
      const [first, count] = last ? this.classifierTokens : [0, this.tokens];
      const out = rowsOf(last ? this.x : blocks[index + 1].x, first, count);
      this.attend(block);
      space.product(rowsOf(this.mixed, first, count), block.proj, block.projBias, added);
      space.add(rowsOf(block.x, first, count), added, out);
      this.applyMlp(block, out);
    });
  }

  /**
   * Compute multi-head self-attention into `mixed`.
   *
   * @param {Block} block
   */
  attend({ x, heads, attention, norm1Scale, norm1Shift, qkv, qkvBias }) {
    const { keys, values, mixed, zeroBias, space } = this;
    const { dim, eps } = this.config;
    const width = dim / attention.length; // K
    space.norm(x, norm1Scale, norm1Shift, eps, this.normed);
    space.product(this.normed, qkv, qkvBias, heads);
    attention.forEach((map, head) => {
      const q = { ...heads, at: heads.at + head * width };
      space.fill(keys, space.numbers, q.at + dim, 1, heads.stride);
      space.fill(values, space.numbers, q.at + 2 * dim, heads.stride, 1);
      space.product(q, keys, zeroBias, map); // all dot products of queries and keys
      space.softmax(map, width ** -0.5);
      space.product(map, values, zeroBias, { ...mixed, at: mixed.at + head * width });
    });
  }

  /**
   * Add the output of the MLP to x.
   *
   * @param {Block} block
   * @param {Matrix} x residual stream, updated in place
   */
  applyMlp({ norm2Scale, norm2Shift, fc1, fc1Bias, fc2, fc2Bias }, x) {
    const { space } = this;
    const normed = rowsOf(this.normed, 0, x.rows), hidden = rowsOf(this.hidden, 0, x.rows);
    space.norm(x, norm2Scale, norm2Shift, this.config.eps, normed);
    space.product(normed, fc1, fc1Bias, hidden);
    space.gelu(hidden);
    space.product(hidden, fc2, fc2Bias, this.added);
    space.add(x, this.added, x);
  }

  /** Return the class probabilities, from the class token or from the mean of the patches. */
  classify() {
    const { space, head, normed, added } = this;
    const { norm, dim, eps } = this.config;
    const x = rowsOf(this.x, ...this.classifierTokens);
    if (norm === "before_pool") space.norm(x, this.normScale, this.normShift, eps, rowsOf(normed, 0, x.rows));
    const from = norm === "before_pool" ? normed : x;
    const pooled = space.row(added, 0).fill(0);
    for (let row = 0; row < x.rows; row++) space.row(from, row).forEach((value, i) => (pooled[i] += value / x.rows));
    if (norm === "after_pool") layerNorm(space.numbers, added.at, dim, this.normScale, this.normShift, eps, added.at);
    const logits = Float64Array.from(head.bias, (bias, label) => pooled.reduce((sum, value, i) => sum + value * head.weight[label * dim + i], bias));
    softmax(logits, 0, logits.length, 1);
    return logits;
  }
}

/**
 * Return a view of some rows of a matrix.
 *
 * @param {Matrix} matrix
 * @param {number} first
 * @param {number} count
 * @returns {Matrix}
 */
function rowsOf(matrix, first, count) {
  return { ...matrix, at: matrix.at + first * matrix.stride, rows: count };
}
