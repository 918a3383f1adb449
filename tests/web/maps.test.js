import assert from "node:assert/strict";
import { test } from "node:test";

import { Colours, SIGNED_COLOURS } from "../../vit/view/web/colours.js";
import { border, fuse, largest, discardWeakest, normalise, outlined, span, strongest, summary } from "../../vit/view/web/maps.js";
import { Features } from "../../vit/view/web/payload.js";
import { PictureMap } from "../../vit/view/web/picture_map.js";
import { State } from "../../vit/view/web/state.js";
import { cases, close, pack, payloadOf, selectionWith } from "./packing.js";

for (const { how, maps, one } of cases.fused)
  test(`${how} of ${maps.length} maps`, () => {
    const [count, n] = [maps.length, one.length];
    const values = Float32Array.from([...Array(n).fill(9), ...maps.flat()]);
    fuse(how, values, n, n, count, 0, n);
    close(values.subarray(0, n), one);
    close(values.subarray(n), maps.flat()); // the inputs are unchanged
  });

for (const { row, prefix, share, left, equal } of cases.discarded)
  test(`${share} of ${row} left out after ${prefix}`, () => {
    const result = Float32Array.from(row);
    const weakest = Math.floor(share * (row.length - prefix));
    if (weakest) discardWeakest(result, prefix, weakest, new Float32Array(row.length - prefix));
    const order = (numbers) => (equal ? [...numbers].sort((a, b) => a - b) : numbers);
    close(order(result), order(left));
  });

for (const { kind, mass = 0, heatmap, marked } of cases.outlines)
  test(`outline of ${JSON.stringify(heatmap)} by ${kind} ${mass || ""}`, () => {
    const values = Float32Array.from([9, ...heatmap.flat()]); // a prefix token, which is ignored
    assert.deepEqual([...outlined(values, 1, kind, mass, new Uint8Array(marked.length))], marked);
  });

for (const { row, prefix, entropy, best } of cases.spreads)
  test(`spread of ${row}`, () => {
    const result = summary(Float32Array.from([9, ...row]), 1, prefix, row.length);
    close([result.entropy / Math.log(row.length), result.sum, result.best], [entropy, 1, best]);
    const twice = summary(Float32Array.from(row, (value) => 2 * value), 0, prefix, row.length);
    close([twice.entropy, twice.sum], [result.entropy, 2]); // the entropy is that of the normalised map
  });

for (const { values, prefix, grid, except, top } of cases.strongest)
  test(`strongest patch of ${values} but ${except}, after ${prefix.length}`, () => {
    assert.equal(values.length, prefix.length + grid[0] * grid[1]);
    close([strongest(Float32Array.from(values), 0, prefix.length, values.length, except)], [top]);
  });

/** Return a payload with these features and uniform attention. */
function payloadWithFeatures(features, prefix, grid) {
  const uniform = features.map(() => features.map(() => 1 / features.length));
  return payloadOf({ attentions: [[uniform]], prefix, grid, features });
}

for (const { name, grids, prefix, source, target, matches } of cases.generated_matches)
  test(`matches in another picture, ${name}`, () => {
    const leader = new State();
    leader.setPayload(payloadWithFeatures(source, prefix, grids.source));
    leader.setSelection(selectionWith({ view: "similar", pinned: true }));
    const payload = payloadWithFeatures(target, prefix, grids.target);
    const state = new State();
    state.setPayload(payload);
    state.setSelection(selectionWith({ view: "similar" }));
    const map = new PictureMap(payload);
    for (const { patch, cosines, best, mutual } of matches) {
      leader.selection.token = prefix.length + patch;
      map.showSimilar(state, payload.features, { query: leader.query, payload: leader.payload, features: leader.payload.features });
      close(map.values, cosines, 1e-6);
      assert.deepEqual([...map.nearest].filter((token) => token >= 0).map((token) => token - prefix.length), best);
      assert.deepEqual([...map.mutual].slice(0, best.length).map(Boolean), mutual);
    }
    map.showSimilar(state, payload.features, null); // its own token again
    assert.ok(!map.mutual.includes(1) && !map.nearest.includes(state.query));
  });

test("components are ready once their colours have loaded, and their values are cosines", () => {
  const payload = payloadWithFeatures([[1, 0], [0, 1], [1, 1]], ["cls"], [1, 2]);
  const state = new State();
  state.setPayload(payload);
  state.setSelection(selectionWith({ view: "components", token: 1, pinned: true }));
  const map = new PictureMap(payload);
  map.showComponents(state, null, null);
  assert.deepEqual([map.ready, map.colours], [false, null]);
  map.showComponents(state, payload.features, null); // without colours yet
  assert.equal(map.ready, false);
  const bytes = pack(
    { kind: "features", tokens: 3, block: 4, shares: [0.5, 0.3, 0.1] },
    { features: Int8Array.of(127, 0, 0, 127, 127, 127), units: Float32Array.of(1 / 127, 1 / 127, 1 / (127 * 2 ** 0.5)), colours: Uint8Array.of(1, 2, 3, 4, 5, 6) },
  );
  const features = Features.read(bytes);
  assert.deepEqual([features.block, features.width, features.shares], [4, 2, [0.5, 0.3, 0.1]]);
  map.showComponents(state, features, null);
  assert.equal(map.ready, true);
  assert.deepEqual([...map.colours], [1, 2, 3, 4, 5, 6]);
  close(map.values, [0, 1, Math.SQRT1_2], 1e-6);
  map.showSimilar(state, features, null);
  assert.equal(map.colours, null);
});

for (const { values, prefix, grid, token, scale, ends } of cases.similar_ends)
  test(`colours of cosines ${values} of token ${token}, ${scale}`, () => {
    const uniform = values.map(() => values.map(() => 1 / values.length));
    const payload = payloadOf({ attentions: [[uniform]], prefix, grid });
    const features = { cosines: (_, out) => out.set(values), tokens: values.length };
    const state = new State();
    state.setPayload(payload);
    state.setSelection(selectionWith({ view: "similar", token, pinned: true, scale }));
    const map = new PictureMap(payload);
    map.showSimilar(state, features, null);
    close([map.low, map.top], ends);
    const { values: shades, at, top } = map.painted;
    const shown = values.slice(prefix.length).map((value) => Math.max(0, (value - ends[0]) / (ends[1] - ends[0])));
    close(shades.slice(at), shown);
    assert.equal(top, 1);
  });

test("colours of signed maps", () => {
  for (const [level, colour] of cases.signed_colours) assert.deepEqual([...SIGNED_COLOURS.slice(3 * level, 3 * level + 3)], colour);
});

for (const { cover, opacity, mean, levels, signed = false } of cases.covers)
  test(`cover by ${cover} at ${opacity}, mean ${mean}${signed ? ", signed" : ""}`, () => {
    const colours = new Colours();
    colours.use(Uint8Array.from({ length: 768 }, (_, i) => Math.floor(i / 3)));
    assert.equal(colours.fade(mean, opacity, cover, signed), true);
    assert.equal(colours.fade(mean, opacity, cover, signed), false);
    for (const [level, covered] of levels) {
      assert.equal(colours.veil[level] >>> 24, covered);
      if (!signed) assert.equal(colours.veil[level] & 255, level); // red
      else if (cover === "weight") assert.equal(colours.veil[level] & 255, level < 128 ? 33 : 178);
    }
  });

test("CSS colours equal the colour map's", () => {
  const colours = new Colours();
  colours.use(Uint8Array.from({ length: 768 }, (_, i) => i % 3));
  assert.equal(colours.css(0.5, 0, 1), "rgb(0 1 2)");
  assert.equal(colours.css(5, 0, 0), "rgb(0 1 2)");
});

test("nearest patches are sorted and exclude the token itself", () => {
  const out = new Int32Array(3);
  largest(Float32Array.from([9, 0.1, 0.9, 0.5, 0.7, 0.2]), 1, 6, 2, out);
  assert.deepEqual([...out], [4, 3, 5]);
  largest(Float32Array.from([9, 0.1, 0.9]), 1, 3, 2, out);
  assert.deepEqual([...out], [1, -1, -1]);
});

test("a span ignores prefix tokens and one patch", () => {
  assert.deepEqual(span(Float32Array.from([9, 0.5, 0.25, -1]), 1, 4, 3), [0.25, 0.5]);
});

test("normalising zeros changes nothing", () => {
  const row = Float32Array.from([0, 0]);
  normalise(row);
  close(row, [0, 0]);
});

test("a border separates marked patches from others", () => {
  assert.equal(border(Uint8Array.from([1, 1, 0, 0]), 2, 2), "M0 0h1M0 0v1M1 0h1M2 0v1M0 1h1M1 1h1");
  assert.equal(border(new Uint8Array(4), 2, 2), "");
});
