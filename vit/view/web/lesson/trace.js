// What one token becomes in one block, number by number. No DOM here.

import { gelu, layerNorm } from "./layers.js";

/** @import { VisionTransformer } from "./transformer.js" */

/**
 * Every number on a token's way through a block, as the last pass computed it. D width of a token, K of a head.
 *
 * @typedef {object} Trace
 * @property {Float32Array} x (D) that enters: the residual stream
 * @property {Float32Array} normed (D) after the first LayerNorm: what queries, keys and values are made of
 * @property {Float32Array} query (K) of the token
 * @property {Float32Array} key (K) of the other token
 * @property {Float32Array} value (K) of the other token
 * @property {Float32Array} products (K) of query and key, channel by channel
 * @property {Float32Array} scores (N) sum of products divided by the square root of K, with every token
 * @property {Float32Array} weights (N) attention: softmax of the scores
 * @property {Float32Array} mixed (K) values of all tokens by their weights: what the head gives
 * @property {Float32Array} headAdds (D) the head's own part of what attention adds
 * @property {Float32Array} attentionAdds (D) what all heads add together
 * @property {Float32Array} between (D) residual stream after attention
 * @property {Float32Array} neurons (M) of the MLP, after GELU
 * @property {Float32Array} mlpAdds (D)
 * @property {Float32Array} out (D) that leaves
 */

/**
 * Follow a token through a block.
 *
 * @param {VisionTransformer} model after a pass
 * @param {number} index of the block
 * @param {number} head
 * @param {number} token that asks
 * @param {number} other that is looked at
 * @returns {Trace}
 */
export function trace(model, index, head, token, other) {
  const { space, tokens, config, none } = model;
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
  const mixed = new Float32Array(dim); // of all heads, side by side
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
    headAdds: space.rowProduct(alone, block.proj, none),
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
