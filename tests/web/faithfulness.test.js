import assert from "node:assert/strict";
import { test } from "node:test";

import { Masks, verdictWord } from "../../vit/view/web/faithfulness.js";
import { cases, close } from "./packing.js";

/** Run a generator; returns its result. */
function result(generator) {
  for (;;) {
    const { done, value } = generator.next();
    if (done) return value;
  }
}

for (const { name, grid, masks, drops, ceiling, decidable, payload, maps } of cases.generated_judged)
  test(`maps judged by ${name}`, () => {
    const read = new Masks(Uint8Array.from(Buffer.from(payload, "base64")));
    assert.deepEqual([read.rows, read.cols, read.count, read.target], [...grid, masks.length, "cat"]);
    assert.deepEqual([read.ceiling, read.decidable], [ceiling, decidable]);
    assert.deepEqual([...read.members], masks.flatMap((mask) => mask.flatMap((one, patch) => (one ? [patch] : []))));
    const mean = drops.reduce((sum, one) => sum + one) / drops.length;
    close(read.drops, drops.map((one) => one - mean));
    for (const { values, correlation, p, reach } of maps) {
      const held = Float32Array.from([9, ...values]); // a prefix token, which is ignored
      close([read.correlation(held, 1)], [correlation]);
      const verdict = result(read.computeVerdict(held, 1));
      close([verdict.correlation, verdict.p, verdict.reach], [correlation, p, reach]);
      close([verdict.error], [(1 - correlation ** 2) / Math.sqrt(masks.length - 1)]);
    }
  });

test("verdicts as text", () => {
  const words = [[0.05, 0], [0.06, 0.06], [0.06, 0.04]].map(([p, error]) => verdictWord({ correlation: 0.2, reach: 0.3, p, error }));
  assert.deepEqual(words, ["better than chance", "cannot be decided yet", "no better than chance"]);
});
