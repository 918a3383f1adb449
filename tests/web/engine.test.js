import assert from "node:assert/strict";
import { test } from "node:test";

import { Engine } from "../../vit/view/web/engine.js";
import { Payload } from "../../vit/view/web/payload.js";
import { cases, close, payloadOf } from "./packing.js";

const ATTENTIONS = [[[[0.5, 0.5], [0.25, 0.75]], [[1, 0], [0, 1]]], [[[0, 1], [1, 0]], [[0.5, 0.5], [0.5, 0.5]]]]; // (L, H, N, N)

function engineOf(options = {}) {
  return new Engine(payloadOf({ attentions: ATTENTIONS, prefix: [], grid: [1, 2], ...options }));
}

function cell(engine, r, c) {
  return engine.values.subarray(engine.offset(r, c), engine.offset(r, c) + engine.payload.tokens);
}

test("all maps, and their fusions over heads, blocks and both", () => {
  const engine = engineOf();
  engine.setQuery(0, "from", "max", "mean");
  engine.computeAll();
  close(cell(engine, 1, 1), [0.5, 0.5], 2e-3);
  close(cell(engine, 1, 0), [0.75, 0.25], 2e-3); // mean of heads
  close(cell(engine, 2, 0), [0.25, 0.75], 2e-3);
  close(cell(engine, 0, 1), [0.5, 1], 2e-3); // maximum of blocks
  close(cell(engine, 0, 0), [0.75, 0.75], 2e-3); // first over heads, then over blocks
  assert.ok(engine.complete);
});

test("a new query invalidates every row, the same query none", () => {
  const engine = engineOf();
  engine.setQuery(0, "from", "mean", "mean");
  engine.computeAll();
  assert.equal(engine.setQuery(0, "from", "mean", "mean"), false);
  for (const other of [[1, "from", "mean", "mean"], [1, "to", "mean", "mean"], [1, "to", "max", "mean"], [1, "to", "max", "min"]]) {
    assert.equal(engine.setQuery(...other), true);
    assert.equal(engine.done.some(Boolean), false);
    engine.computeAll();
  }
  close(cell(engine, 1, 0), [0, 0.75], 2e-3); // attention to token 1: minimum of heads
});

test("steps cycle from the given row and end with the summary", () => {
  const engine = engineOf();
  engine.setQuery(1, "from", "mean", "mean");
  const rows = [];
  while (!engine.complete) rows.push(engine.step(2));
  assert.deepEqual(rows, [-1, 2, -1, 1, 0]);
  const all = engineOf();
  all.setQuery(1, "from", "mean", "mean");
  all.computeAll();
  assert.deepEqual(engine.values, all.values);
});

test("a single map is computed at once; the summary of all blocks waits", () => {
  const engine = engineOf();
  engine.setQuery(0, "from", "mean", "mean");
  assert.equal(engine.ensureCell(0, 0), false);
  assert.equal(engine.ensureCell(2, 1), true);
  close(cell(engine, 2, 1), [0, 1], 2e-3);
  assert.equal(engine.done[2], 0);
  assert.equal(engine.ensureCell(1, 0), true); // with all its heads
  assert.equal(engine.done[1], 1);
});

test("the pooling query has its own row, which the summary of blocks ignores", () => {
  const engine = engineOf({ pool: [[1, 0], [0.5, 0.5]] });
  engine.setQuery(0, "from", "max", "mean");
  engine.computeAll();
  close(cell(engine, 3, 1), [1, 0]);
  close(cell(engine, 3, 0), [0.75, 0.25]);
  close(cell(engine, 0, 1), [0.5, 1], 2e-3);
});

for (const { name, payload, rows } of cases.generated)
  test(`${name}: fused maps equal those of the attention that Python packed`, () => {
    const engine = new Engine(new Payload(Uint8Array.from(Buffer.from(payload, "base64"))));
    for (const { block, head, token, direction, values } of rows) {
      const fusions = [block, head].map((how) => (typeof how === "string" ? how : "mean"));
      engine.setQuery(token, direction, ...fusions);
      engine.computeAll();
      const [r, c] = [block, head].map((how) => (typeof how === "string" ? 0 : how + 1));
      close(cell(engine, r, c), values, 2e-3);
    }
  });

