import assert from "node:assert/strict";
import { test } from "node:test";

import {
  GLOSSARY, afterBlock, chipName, clearText, signed, effective, faithfulness, faithfulTitle, legendText, methodMeaning, multiple, ordinal, percent, position, prefixMeaning, occlusionText, regionText, roundTicks,
  sentence, settingsText, tokenName, waitingText,
} from "../../vit/view/web/captions.js";
import { cases, layoutOf, selectionWith } from "./packing.js";

const RELEVANCE = { title: "Relevance", target: "<b>cat</b>", chain: "c", tokens: true, settings: ["start_block"] };
const NAMES = { rollout: cases.rollout_settings, relevance: RELEVANCE.settings };
const LAYOUT = layoutOf({ prefix: ["cls", "reg2"], grid: [2, 3] });

test("token names equal Python's", () => {
  for (const { prefix, grid, names } of cases.tokens)
    names.forEach((name, token) => assert.equal(tokenName(layoutOf({ prefix, grid }), token), name));
});

for (const { text, view, settings = {}, direction = "from", target = RELEVANCE.target, after_block = 5, signed: both = false, ...shown } of cases.sentences)
  test(`sentence: ${text}`, () => {
    const settingsSentence = settingsText(NAMES[view] ?? [], selectionWith(settings));
    assert.equal(sentence(LAYOUT, { ...shown, view, direction, method: { ...RELEVANCE, target, signed: both }, settings: settingsSentence, after: afterBlock(after_block, 6) }), text);
  });

test("share of a map on hidden patches", () => {
  for (const { map, hidden, signed: both = false, text } of cases.regions) assert.equal(regionText(new Float32Array(map.flat()), hidden, both), text);
});

test("settings that differ from their defaults are listed in a fixed order", () => {
  const every = ["discard", "fusion", "residual", "start_block"];
  for (const { settings, text } of cases.settings) assert.equal(settingsText(every, selectionWith(settings)), text);
});

test("settings that the method does not have are not listed", () => {
  assert.equal(settingsText(["start_block"], selectionWith({ residual: 0.1 })), "");
});

/** Define a test from rows of argument and expected result. */
function table(name, call, rows) {
  test(name, () => {
    for (const [value, words] of rows) assert.equal(call(value), words);
  });
}

table("shares have two significant digits", percent, [
  [1, "100%"], [0.9995, "100%"], [0.9994, "99.9%"], [0.314, "31%"], [0.0314, "3.1%"], [0.00314, "0.31%"],
  [0.000314, "0.031%"], [0.000001, "< 0.001%"], [0, "0%"],
]);
table("multiples of uniform attention", multiple, [[12.4, "12×"], [2.71, "2.7×"], [0.314, "0.31×"], [0.001, "< 0.01×"], [0, "0×"]]);
table("cosines have a real minus, but none in front of zero", signed, [[0.934, "0.93"], [-0.12, "−0.12"], [-0.001, "0.00"], [1, "1.00"]]);
table("ranks", ordinal, [[1, "1st"], [2, "2nd"], [3, "3rd"], [4, "4th"], [11, "11th"], [12, "12th"], [13, "13th"], [21, "21st"], [112, "112th"]]);
table("effective numbers of tokens", effective, [[1.26, "1.3"], [9.96, "10"], [41.4, "41"]]);
test("every known prefix token is explained", () => {
  for (const name of ["cls", "dist", "reg1", "reg12"]) assert.match(prefixMeaning(name), /^Token without a patch/);
  assert.equal(prefixMeaning("mask"), "");
});

test("a method's description says what it does and where to choose another", () => {
  const method = { ...RELEVANCE, sentence: "It adds up." };
  assert.equal(methodMeaning(method), "Evidence for “<b>cat</b>”. It adds up. Choose another above");
  assert.equal(methodMeaning({ ...RELEVANCE, target: "" }), "Tokens that the prediction is based on. Choose another above");
});

test("the terms beside the maps are explained", () => {
  assert.match(GLOSSARY.spread, /entropy.*uniform/i);
  assert.match(GLOSSARY.prefix, /class token.*registers/);
});

table("chips", chipName, [["cls", "Class token"], ["dist", "Distillation"], ["reg12", "Register 12"], ["<b>", "<b>"]]);

test("a position counts rows and columns from 1", () => {
  assert.equal(position(LAYOUT, 2), "row 1, col 1");
  assert.equal(position(LAYOUT, 7), "row 2, col 3");
});

test("an occluded patch: change of the probability, and the new prediction", () => {
  const occlusion = { target: "cat", before: 0.5, after: [0.48, 0.55], answers: ["", "dog"] };
  assert.equal(occlusionText(occlusion, 0, "row 1, col 1"), "Without the patch (row 1, col 1): “cat” 48% (−2.0 points).");
  assert.equal(occlusionText(occlusion, 1, "row 1, col 2"), "Without the patch (row 1, col 2): “cat” 55% (+5.0 points). The answer becomes “dog”.");
});

test("an occluded patch: change of a number without probabilities", () => {
  const occlusion = { target: "age", before: 40, after: [38.51, 41234.5, -0.00123], answers: ["", "", ""], numbers: true };
  assert.equal(occlusionText(occlusion, 0, "row 1, col 1"), "Without the patch (row 1, col 1): “age” = 38.51 (−1.49).");
  assert.equal(occlusionText(occlusion, 1, "row 1, col 2"), "Without the patch (row 1, col 2): “age” = 41,235 (+41,195).");
  assert.equal(occlusionText(occlusion, 2, "row 1, col 3"), "Without the patch (row 1, col 3): “age” = −0.00123 (−40).");
});

test("the legend gives the end of the scale and the uniform weight", () => {
  const payload = { tokens: 50, pool: null };
  assert.match(legendText(payload, "attention", "shared", 0, 0.2, false), /^The large map ends at its strongest patch, 20%; .* one scale\. .* 1\/50 = 2\.0%\.$/);
  assert.match(legendText(payload, "attention", "shared", 0, 0.2, false, true, true), /^One scale for every block and head\. .* 20%.* 1\/50 = 2\.0%\.$/);
  assert.match(legendText({ ...payload, pool: [] }, "attention", "shared", 0, 0.2, false, true, true), /the pooling query has another/);
  assert.match(legendText(payload, "attention", "own", 0, 0.2, true), /^This map alone: it ends at its strongest patch, 20%/);
  assert.match(legendText(payload, "rollout", "shared", 0, 0.2, true), /^One scale for both rollouts: /);
  assert.match(legendText(payload, "rollout", "own", 0, 0.2, true), /^This rollout alone: /);
  assert.match(legendText(payload, "relevance", "own", 0, 0.2, false), /^This map alone, in shares of all its weight: /);
  assert.match(legendText(payload, "relevance", "own", 0, 0.2, false, false), /^This map alone: /);
  assert.match(legendText(payload, "similar", "own", -0.5, 0.75, false), /−0\.50, .* 0\.75/);
  assert.equal(clearText("similar", 0.5), " On the picture, patches below the mean (0.50) are not coloured.");
});

test("a note explains why there is no map yet", () => {
  const method = { ...RELEVANCE, title: "LeGrad" };
  assert.equal(waitingText("relevance", method, false, false), "Computing LeGrad …");
  assert.equal(waitingText("rollout", null, true, false), "Computing the rollout …");
  assert.equal(waitingText("rollout", null, false, false), "Click a patch for its rollout");
  assert.equal(waitingText("rollout", null, false, true), "Only the app can compute this map");
});

test("ticks are round numbers within the range", () => {
  const out = new Float64Array(12);
  const ticks = (low, top) => [...out.slice(0, roundTicks(low, top, 5, out))].map((tick) => tick + 0); // no -0
  assert.deepEqual(ticks(0, 10), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(ticks(0, 1), [0, 0.2, 0.4, 0.6000000000000001, 0.8, 1]);
  assert.deepEqual(ticks(-0.5, 0.5), [-0.4, -0.2, 0, 0.2, 0.4]);
  assert.deepEqual(ticks(3, 3), []);
});

test("faithfulness is marked as an estimate until all masks are measured", () => {
  const some = { target: "cat", count: 128, complete: false }, all = { ...some, count: 512, complete: true };
  assert.deepEqual([faithfulTitle(some), faithfulness(-0.208, some)], ["Faithful to “cat”, by 128 masks so far", "≈ −0.21"]);
  assert.deepEqual([faithfulTitle(all), faithfulness(-0.208, all)], ["Faithful to “cat”", "−0.21"]);
});
