import assert from "node:assert/strict";
import { test } from "node:test";

import { decodeHalves } from "../../vit/view/web/bytes.js";
import { Chain, Payload } from "../../vit/view/web/payload.js";
import { cases, chainOf, close, payloadOf } from "./packing.js";

const HALF_A_STEP = 0.5 / 255; // of a row's strongest patch, which is at most 1

test("float16 numbers are decoded by their bits", () => {
  for (const [bits, number] of cases.halves)
    assert.equal(decodeHalves(Uint16Array.of(7, bits), 1, new Float32Array(1))[0] + 0, number);
  assert.ok(Number.isNaN(decodeHalves(Uint16Array.of(32256), 0, new Float32Array(1))[0]));
  assert.equal(decodeHalves(Uint16Array.of(64512), 0, new Float32Array(1))[0], -Infinity);
});

test("bytes of another format are rejected", () => {
  assert.throws(() => new Payload(new TextEncoder().encode("GIF89a and so on")), /not a viewer payload/);
});

test("rows and columns equal the attention's", () => {
  for (const { attentions, prefix, grid } of cases.rollouts) {
    const payload = payloadOf({ attentions, prefix, grid });
    const out = new Float32Array(payload.tokens + 1);
    attentions.forEach((block, b) => block.forEach((map, h) => map.forEach((row, token) => {
      payload.fill(b, h, token, "from", out, 1);
      close(out.subarray(1), row, 1e-3);
      payload.fill(b, h, token, "to", out, 1);
      close(out.subarray(1), map.map((other) => other[token]), 1e-3);
    })));
  }
});

test("the pooling query follows the last block", () => {
  const [{ attentions, prefix, grid }] = cases.rollouts;
  const payload = payloadOf({ attentions, prefix, grid, pool: [[0.25, 0.75]] });
  const out = new Float32Array(2);
  payload.fill(payload.blocks, 0, 1, "to", out, 0);
  close(out, [0.25, 0.75]);
  assert.equal(payload.lines, payload.blocks + 1);
});

for (const { attentions, prefix, grid, answers } of cases.rollouts)
  for (const { token, direction = "from", row, ...changed } of answers)
    test(`rollout ${direction} token ${token} of ${attentions.length} blocks, ${JSON.stringify(changed)}`, () => {
      const payload = payloadOf({ attentions, prefix, grid });
      const out = new Float32Array(payload.tokens);
      payload.rollout(0, "to", { residual: 0.1, fusion: "max", discard: 0 }, out); // must not affect the next call
      payload.rollout(token, direction, { ...cases.usual, ...changed }, out);
      close(out, row, 2e-3);
    });

for (const { share, patches, count } of cases.left_out)
  test(`${share} of ${patches} patches are ${count}`, () => {
    const row = Array.from({ length: patches }, (_, i) => 1 + i);
    const attention = row.map(() => row.map((value) => value / row.reduce((a, b) => a + b)));
    const payload = payloadOf({ attentions: [[attention]], prefix: [], grid: [1, patches] });
    const out = new Float32Array(patches);
    payload.rollout(0, "from", { residual: 0, fusion: "mean", discard: share }, out);
    assert.equal(out.filter((value) => value === 0).length, count);
  });

for (const { matrices, start, answers } of cases.chains)
  for (const { token, direction = "from", first = 0, shares } of answers)
    test(`chain of ${matrices.length} blocks, ${direction} token ${token} after ${first}`, () => {
      const chain = new Chain(chainOf({ matrices, start }));
      const out = new Float32Array(start.length);
      chain.trace(0, "from", 0, out); // must not affect the next call
      chain.trace(token, direction, first, out);
      close(out, shares, 1e-5);
    });

test("cosines of features", () => {
  const [{ attentions, prefix, grid }] = cases.rollouts;
  const payload = payloadOf({ attentions, prefix, grid, features: [[3, 4, 0, 0, 0], [4, 3, 0, 0, 0]] });
  const out = new Float32Array(2);
  payload.features.cosines(0, out);
  close(out, [1, 0.96]);
});

for (const { name, payload: text, rows, rollouts, cosines, pool } of cases.generated) {
  const payload = new Payload(Uint8Array.from(Buffer.from(text, "base64")));
  const out = new Float32Array(payload.tokens);

  test(`${name}: rows and columns equal those that Python packed`, () => {
    for (const { block, head, token, direction, values } of rows) {
      if (typeof block !== "number" || typeof head !== "number") continue;
      payload.fill(block, head, token, direction, out, 0);
      close(out, values, HALF_A_STEP);
    }
  });

  test(`${name}: rollout is the product of all blocks`, () => {
    for (const { token, direction, values, ...settings } of rollouts) {
      payload.rollout(token, direction, settings, out);
      close(out, values, 2e-3);
    }
  });

  test(`${name}: cosines and the pooling query`, () => {
    for (const { token, values } of cosines) {
      payload.features.cosines(token, out);
      close(out, values, 0.01);
    }
    pool.forEach((values, head) => {
      payload.fill(payload.blocks, head, 0, "from", out, 0);
      close(out, values, 1e-5);
    });
  });

  test(`${name}: evicted blocks are decoded again to the same values`, () => {
    if (payload.quick) return;
    payload.attention.capacity = 2;
    for (const { block, head, token, direction, values } of rows) {
      if (typeof block !== "number" || typeof head !== "number") continue;
      payload.fill(block, head, token, direction, out, 0);
      close(out, values, HALF_A_STEP);
      assert.ok(payload.attention.decodedCount <= 2);
    }
  });
}
