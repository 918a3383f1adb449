// Tests of the lesson's model without a browser, on the cases that `tests/test_lesson.py` checks torch against.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { inflate } from "../../vit/view/web/bytes.js";
import { gelu, layerNorm, softmax } from "../../vit/lesson/web/layers.js";
import { packMaps } from "../../vit/lesson/web/maps_payload.js";
import { prepare } from "../../vit/lesson/web/preprocess.js";
import { decodeText } from "../../vit/lesson/web/text.js";
import { trace } from "../../vit/lesson/web/trace.js";
import { VisionTransformer } from "../../vit/lesson/web/transformer.js";
import { readWeights } from "../../vit/lesson/web/weights.js";
import { Workspace } from "../../vit/lesson/web/workspace.js";
import { Payload } from "../../vit/view/web/payload.js";
import { close } from "./packing.js";

const lesson = JSON.parse(readFileSync(new URL("lesson_cases.json", import.meta.url), "utf8"));
const BOUND = 1e-5; // larger than the error from rounding the weights

const bytes = (text) => Uint8Array.from(Buffer.from(text, "base64"));

async function modelOf({ config, tensors, middle, packed }, plain = false) {
  const weights = readWeights(tensors, middle, await inflate(bytes(packed), "deflate"));
  return new VisionTransformer(config, (name) => weights.get(name), plain);
}

const pixelsOf = ({ pixels }) => new Float32Array(bytes(pixels).buffer);

function mapOf(model, { attention }, head) {
  return Array.from({ length: model.tokens }, (_, token) => [...model.space.row(attention[head], token)]);
}

for (const of of lesson.models)
  for (const plain of [false, true])
    test(`${of.name}: probabilities and all maps ${plain ? "without" : "with"} WebAssembly`, async () => {
      const model = await modelOf(of, plain);
      for (let pass = 0; pass < 2; pass++) { // the second pass reuses the memory of the first
        close(model.run(pixelsOf(of)), of.probabilities, BOUND);
        of.attentions.forEach((heads, block) => heads.forEach((map, head) => close(mapOf(model, model.blocks[block], head).flat(), map.flat(), BOUND)));
      }
    });

for (const of of lesson.models)
  test(`${of.name}: every value of a token's trace`, async () => {
    const model = await modelOf(of);
    model.run(pixelsOf(of));
    for (const { block, head, token, other, numbers } of of.traces) {
      const result = trace(model, block, head, token, other);
      assert.deepEqual(Object.keys(result).sort(), Object.keys(numbers).sort());
      for (const [name, values] of Object.entries(numbers)) close(result[name], values, 2 * BOUND);
    }
  });

test("packed maps equal those of the pass", async () => {
  const [of] = lesson.models;
  const model = await modelOf(of);
  model.run(pixelsOf(of));
  const picture = { bytes: new TextEncoder().encode("a picture"), type: "image/png", width: 12, height: 8 };
  const colours = new Uint8Array(768).fill(7);
  const payload = new Payload(packMaps(model, picture, [0, 0, 12, 8], { gray: colours }));
  assert.equal(new TextDecoder().decode(payload.picture), "a picture");
  assert.deepEqual([...payload.colormaps], [["gray", colours]]);
  const out = new Float32Array(payload.tokens);
  of.attentions.forEach((heads, block) => heads.forEach((map, head) => map.forEach((row, token) => {
    payload.fill(block, head, token, "from", out, 0);
    close(out, row, 0.002);
    payload.fill(block, head, token, "to", out, 0);
    close(out, map.map((other) => other[token]), 0.002);
  })));
});

test("ends of the shared scales equal Python's", async () => {
  for (const of of lesson.models) {
    const model = await modelOf(of);
    model.run(pixelsOf(of));
    const payload = new Payload(packMaps(model, { bytes: new Uint8Array(0), type: "", width: 1, height: 1 }, [0, 0, 1, 1], {}));
    close(payload.tops, of.tops, 1e-6);
  }
});

for (const { name, width, height, pixels, preprocess, input, box } of lesson.pictures)
  test(`${name}: preprocessing equals Pillow's`, () => {
    const result = prepare(preprocess, bytes(pixels), width, height);
    close(result.input, input.flat(2));
    close(result.box, box);
  });

for (const { bytes: packed, text } of lesson.texts)
  test("bytes survive the round trip through text", () => {
    assert.deepEqual(decodeText(text).subarray(0, bytes(packed).length), bytes(packed));
    assert.ok(!/[\0\r<]/.test(text));
  });

test("the WebAssembly product equals the JavaScript one", () => {
  const values = (count) => Float32Array.from({ length: count }, (_, i) => Math.sin(3 * i));
  const [result, expected] = [false, true].map((plain) => {
    const space = new Workspace(20000, plain);
    const a = space.matrix(7, 13), w = space.panels(13, 19), out = space.matrix(7, 19);
    for (let row = 0; row < 7; row++) space.row(a, row).set(values(7 * 13).subarray(13 * row, 13 * row + 13));
    space.fill(w, values(13 * 19), 0, 19, 1);
    const bias = space.vector(values(19));
    space.product(a, w, bias, out);
    close(space.rowProduct(space.row(a, 6), w, bias), [...space.row(out, 6)], 1e-5);
    return Array.from({ length: 7 }, (_, row) => [...space.row(out, row)]).flat();
  });
  close(result, expected, 1e-5);
  assert.throws(() => new Workspace(100, true).reserve(101), /no room for 101/);
});

test("layers by hand", () => {
  const numbers = Float32Array.of(0, 1, -1, 7, -7);
  gelu(numbers, 0, 5);
  close(numbers, [0, 0.8413447, -0.1586553, 7, 0], 1e-7);
  const shares = Float32Array.of(9, 0, Math.log(3), 9);
  softmax(shares, 1, 2, 1);
  close(shares, [9, 0.25, 0.75, 9]);
  const row = Float32Array.of(1, 3, 2, 10, 0.5, -1, 0, 0); // two numbers, their scales, their shifts, space for the result
  layerNorm(row, 0, 2, 2, 4, 0, 6);
  close(row.subarray(6), [-2 + 0.5, 10 - 1]);
});
