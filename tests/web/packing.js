// Packs small payloads for tests in the format of `vit.view.payload`.

import { readFileSync } from "node:fs";

import { Payload } from "../../vit/view/web/payload.js";

export const cases = JSON.parse(readFileSync(new URL("cases.json", import.meta.url), "utf8"));

/** Encode numbers as float16 bits; they must be exact in float16. */
function halves(numbers) {
  return Uint16Array.from(numbers, (number) => {
    if (number === 0) return 0;
    const exponent = Math.max(Math.floor(Math.log2(Math.abs(number))), -14);
    const fraction = Math.abs(number) / 2 ** exponent;
    const bits = fraction < 1 ? Math.round(fraction * 1024) : ((exponent + 15) << 10) + Math.round((fraction - 1) * 1024);
    return (number < 0 ? 32768 : 0) + bits;
  });
}

/** Serialise a header and its sections. */
export function pack(header, sections) {
  const room = 8 * Math.ceil((1000 + 100 * Object.keys(sections).length) / 8);
  const table = {};
  let size = 8 + room;
  for (const [name, numbers] of Object.entries(sections)) {
    table[name] = [size, numbers.byteLength];
    size += 8 * Math.ceil(numbers.byteLength / 8);
  }
  const bytes = new Uint8Array(size);
  bytes.set(new TextEncoder().encode("vit1"));
  new DataView(bytes.buffer).setUint32(4, room, true);
  bytes.set(new TextEncoder().encode(JSON.stringify({ ...header, sections: table }).padEnd(room)), 8);
  for (const [name, numbers] of Object.entries(sections))
    bytes.set(new Uint8Array(numbers.buffer, numbers.byteOffset, numbers.byteLength), table[name][0]);
  return bytes;
}

/** Return a payload of kind "maps" from attention (L, H, N, N) and optional sections. */
export function payloadOf({ attentions, prefix, grid, pool = null, features = null }) {
  const [blocks, heads, tokens] = [attentions.length, attentions[0].length, attentions[0][0].length];
  const rows = attentions.flat(2);
  const scales = rows.map((row) => Math.max(...row.slice(prefix.length), 1e-30));
  const sections = {
    picture: new Uint8Array(0),
    "colormap:gray": Uint8Array.from({ length: 768 }, (_, i) => Math.floor(i / 3)),
    prefix: halves(rows.flatMap((row) => row.slice(0, prefix.length))),
    scales: Float32Array.from(scales),
    maps: Uint8Array.from(rows.flatMap((row, i) => row.slice(prefix.length).map((w) => Math.round((255 * w) / scales[i])))),
    tops: new Float32Array(2 * tokens).fill(1),
    ...(pool && { pool: Float32Array.from(pool.flat()) }),
    ...(features && { features: Int8Array.from(features.flat()), units: Float32Array.from(features.map((f) => 1 / Math.hypot(...f))) }),
  };
  const picture = { width: 8, height: 8, type: "image/png" };
  const header = { kind: "maps", blocks, heads, tokens, width: 1, prefix, grid, picture, box: [0, 0, 8, 8], colormaps: ["gray"] };
  return new Payload(pack({ ...header, pool_top: 0.5 }, sections));
}

/** Pack a chain's matrices (L, N, N). */
export function chainOf({ matrices, start }) {
  const scales = matrices.map((matrix) => Math.max(...matrix.flat(), 1e-30));
  const shares = matrices.flatMap((matrix, block) => matrix.flat().map((value) => value / scales[block]));
  return pack(
    { kind: "chain", blocks: matrices.length, heads: 1, tokens: start.length },
    { matrices: halves(shares), scales: Float32Array.from(scales), start: Float32Array.from(start) },
  );
}

/** Return a TokenLayout. */
export function layoutOf({ prefix, grid: [rows, cols] }) {
  return { prefix, split: prefix.length, rows, cols };
}

/** Return the default selection with some fields changed. */
export function selectionWith(changes = {}) {
  return {
    block: 0, head: "mean", token: 0, pinned: false, view: "attention", direction: "from", colormap: "gray", opacity: 0.6,
    cover: "weight", smooth: false, scale: "shared", contour: "none", mass: 0.6, hidden: [], after_block: 0, ...cases.usual, ...changes,
  };
}

/** Throw if numbers differ by more than a tolerance. */
export function close(actual, expected, tolerance = 1e-6) {
  const numbers = [...actual];
  const differ = numbers.length !== expected.length || numbers.some((number, i) => !(Math.abs(number - expected[i]) <= tolerance));
  if (differ) throw new Error(`${numbers} is not ${expected}`);
}
