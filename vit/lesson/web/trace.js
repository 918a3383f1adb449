// All intermediate values of one token in one block. No DOM access.

import { gelu, layerNorm } from "./layers.js";

/** @import { VisionTransformer } from "./transformer.js" */

/**
 * The intermediate values of a token in a block, from the last pass. D is the width of a token, K of a head.
 *
 * @typedef {object} Trace
 * @property {Float32Array} x (D) residual stream that enters the block
 * @property {Float32Array} normed (D) after the first LayerNorm, input of queries, keys and values
 * @property {Float32Array} query (K) of the token
 * @property {Float32Array} key (K) of the other token
 * @property {Float32Array} value (K) of the other token
 * @property {Float32Array} products (K) query times key, per channel
 * @property {Float32Array} scores (N) scaled dot products of the query with every token's key
 * @property {Float32Array} weights (N) attention: softmax of the scores
 * @property {Float32Array} mixed (K) weighted sum of the values of all tokens: the head's output
 * @property {Float32Array} headAdds (D) the head's share of `attentionAdds`
 * @property {Float32Array} attentionAdds (D) output of the attention layer
 * @property {Float32Array} between (D) residual stream after attention
 * @property {Float32Array} neurons (M) of the MLP, after GELU
 * @property {Float32Array} mlpAdds (D) output of the MLP
 * @property {Float32Array} out (D) residual stream that leaves the block
 */

/**
 * Trace a token through a block.
 *
 * @param {VisionTransformer} model model after a pass
 * @param {number} index block
 * @param {number} head
 * @param {number} token query token
 * @param {number} other key token
 * @returns {Trace}
 */
export function trace(model, index, head, token, other) {
  const { space, tokens, config, zeroBias } = model;
  const { dim, eps } = config;
  const block = model.blocks[index];
  const width = dim / config.heads; // K
  /** @type {(scale: number, shift: number, row: Float32Array) => Float32Array} */
  const normalised = (scale, shift, row) => {
    const scratch = space.row(model.normed, 0);
    scratch.set(row);
    layerNorm(space.numbers, model.normed.at, dim, scale, shift, eps, model.normed.at);
    return scratch.slice();
  };
  /** @type {(row: number, which: number, ofHead?: number) => Float32Array} query (0), key (1) or value (2) of a token */
  const part = (row, which, ofHead = head) => {
    const from = which * dim + ofHead * width;
    return space.row(block.heads, row).slice(from, from + width);
  };
  const x = space.row(block.x, token).slice();
  const [query, key, value] = [part(token, 0), part(other, 1), part(other, 2)];
  const mixed = new Float32Array(dim); // all heads concatenated
  block.attention.forEach((map, each) => {
    const weights = space.row(map, token);
    for (let j = 0; j < tokens; j++) part(j, 2, each).forEach((number, i) => (mixed[each * width + i] += weights[j] * number));
  });
  const alone = mixed.map((number, i) => (Math.floor(i / width) === head ? number : 0));
  const attentionAdds = space.rowProduct(mixed, block.proj, block.projBias);
  const between = sum(x, attentionAdds);
  const neurons = space.rowProduct(normalised(block.norm2Scale, block.norm2Shift, between), block.fc1, block.fc1Bias);
  gelu(neurons, 0, neurons.length);
  const mlpAdds = space.rowProduct(neurons, block.fc2, block.fc2Bias);
  return {
    x,
    normed: normalised(block.norm1Scale, block.norm1Shift, x),
    query,
    key,
    value,
    products: query.map((number, i) => number * key[i]),
    scores: Float32Array.from({ length: tokens }, (_, j) => dot(query, part(j, 1)) / Math.sqrt(width)),
    weights: space.row(block.attention[head], token).slice(),
    mixed: mixed.slice(head * width, (head + 1) * width),
    headAdds: space.rowProduct(alone, block.proj, zeroBias),
    attentionAdds,
    between,
    neurons,
    mlpAdds,
    out: sum(between, mlpAdds),
  };
}

/**
 * @param {Float32Array} one
 * @param {Float32Array} other
 */
function dot(one, other) {
  return one.reduce((total, number, i) => total + number * other[i], 0);
}

/**
 * @param {Float32Array} one
 * @param {Float32Array} other
 */
function sum(one, other) {
  return one.map((number, i) => number + other[i]);
}
