// Packs the attention of a forward pass as a viewer payload, like `vit.view.payload.pack`. No DOM access.

import { encodeHalves } from "../../view/web/bytes.js";

/** @import { VisionTransformer } from "./transformer.js" */

const TINY = 2 ** -126;

// End of the shared colour scale, as in vit/view/payload.py.
const LEAST_TOP = 4;
const ROUND_TOPS = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10];

/**
 * Pack the attention of the last pass and the picture.
 *
 * @param {VisionTransformer} model
 * @param {{ bytes: Uint8Array, type: string, width: number, height: number }} picture for display
 * @param {number[]} box left, top, right, bottom of the patch grid in pixels of the picture
 * @param {Record<string, Uint8Array>} colormaps
 */
export function packMaps({ blocks, config, tokens, prefix: split, rows, cols, space }, picture, box, colormaps) {
  const { depth, heads } = config;
  const patches = rows * cols, lines = depth * heads * tokens;
  const prefix = new Float32Array(lines * split), scales = new Float32Array(lines), maps = new Uint8Array(lines * patches);
  const strongest = [new Float32Array(lines), new Float32Array(lines)]; // per token: largest attention given, received
  blocks.forEach(({ attention }, block) => {
    attention.forEach((map, head) => {
      const first = (block * heads + head) * tokens;
      const received = strongest[1].subarray(first, first + tokens);
      for (let token = 0; token < tokens; token++) {
        const row = space.row(map, token), line = first + token;
        let most = TINY;
        for (let j = split; j < tokens; j++) if (row[j] > most) most = row[j];
        for (let j = 0; j < split; j++) prefix[line * split + j] = row[j];
        for (let j = split, to = line * patches; j < tokens; j++) maps[to++] = row[j] * (255 / most) + 0.5; // Uint8Array truncates
        if (token >= split) for (let j = 0; j < tokens; j++) if (row[j] > received[j]) received[j] = row[j];
        scales[line] = strongest[0][line] = most;
      }
    });
  });
  const tops = strongest.flatMap((values) => Array.from({ length: tokens }, (_, token) => scaleEnd(values, token, tokens)));
  const sections = {
    picture: picture.bytes,
    ...Object.fromEntries(Object.entries(colormaps).map(([name, colours]) => [`colormap:${name}`, colours])),
    prefix: encodeHalves(prefix), scales, maps, tops: Float32Array.from(tops),
  };
  const { width, height, type } = picture;
  const header = { kind: "maps", blocks: depth, heads, tokens, width: config.dim / heads, prefix: config.prefix, grid: [rows, cols], picture: { width, height, type }, box, colormaps: Object.keys(colormaps) };
  return serialise(header, sections);
}

/**
 * Return the end of a token's shared scale: the median of its maps' maxima, rounded up to a round multiple of uniform
 * attention.
 *
 * @param {Float32Array} values strongest patch of every map and token
 * @param {number} token
 * @param {number} tokens
 */
function scaleEnd(values, token, tokens) {
  const sorted = Float32Array.from({ length: values.length / tokens }, (_, map) => values[map * tokens + token]).sort();
  const median = (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
  const multiple = Math.max(median * tokens, LEAST_TOP);
  const power = 10 ** Math.floor(Math.log10(multiple));
  const step = ROUND_TOPS.find((one) => one >= multiple / power - 1e-6) ?? 10;
  return Math.min((step * power) / tokens, 1);
}

/**
 * Serialise a header and its sections.
 *
 * @param {object} header
 * @param {Record<string, Uint8Array | Uint16Array | Float32Array>} sections
 */
function serialise(header, sections) {
  const encode = (/** @type {object} */ table) => new TextEncoder().encode(JSON.stringify({ ...header, sections: table }));
  const room = encode(Object.fromEntries(Object.keys(sections).map((name) => [name, [2 ** 32, 2 ** 32]]))).length;
  let at = roundUp(8 + room);
  const start = at;
  /** @type {Record<string, [number, number]>} */
  const table = {};
  for (const [name, numbers] of Object.entries(sections)) {
    table[name] = [at, numbers.byteLength];
    at = roundUp(at + numbers.byteLength);
  }
  const bytes = new Uint8Array(at).fill(32, 8, start);
  bytes.set(new TextEncoder().encode("vit1"));
  new DataView(bytes.buffer).setUint32(4, start - 8, true);
  bytes.set(encode(table), 8);
  for (const [name, numbers] of Object.entries(sections))
    bytes.set(new Uint8Array(numbers.buffer, numbers.byteOffset, numbers.byteLength), table[name][0]);
  return bytes;
}

/** @param {number} size */
function roundUp(size) {
  return Math.ceil(size / 8) * 8;
}
