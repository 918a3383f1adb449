import assert from "node:assert/strict";
import { test } from "node:test";

import { counterpart, fit, isFusion, neighbour } from "../../vit/view/web/selection.js";
import { State } from "../../vit/view/web/state.js";
import { cases, layoutOf, payloadOf, selectionWith } from "./packing.js";

const METHOD = { title: "Relevance", target: "cat", chain: "c", tokens: true, settings: ["start_block"] };

/** Return a payload with uniform attention. */
function uniform({ blocks = 2, heads = 2, prefix = ["reg1", "cls"], grid = [2, 3], ...more } = {}) {
  const tokens = prefix.length + grid[0] * grid[1];
  const map = Array(tokens).fill(Array(tokens).fill(1 / tokens));
  return payloadOf({ attentions: Array(blocks).fill(Array(heads).fill(map)), prefix, grid, ...more });
}

/** Return a state; by default 2 blocks, 2 heads, 2 prefix tokens and 2 x 3 patches. */
function stateOf(selection = {}, payload = uniform(), method = null) {
  const state = new State();
  state.setPayload(payload);
  state.method = method;
  state.setSelection(selectionWith(selection));
  state.fitSelection();
  state.rememberFusions();
  return state;
}

const pooled = (selection) => {
  const payload = uniform({ pool: Array(2).fill(Array(8).fill(1 / 8)) });
  return stateOf({ view: "pool", head: 1, ...selection }, payload);
};

// ---- selections, on the same cases as in Python -------------------------------------------------------------

for (const { asked, has, shown } of cases.selections)
  test(`a selection of ${JSON.stringify(asked)} fits ${has.blocks} blocks`, () => {
    const selection = selectionWith(asked);
    fit(selection, uniform(has), null);
    for (const [name, value] of Object.entries(shown)) assert.equal(selection[name], value, name);
  });

for (const { asked, features, pool, shown } of cases.views)
  test(`view ${asked} of a payload ${features ? "with" : "without"} features, ${pool ? "with" : "without"} pooling query`, () => {
    const selection = selectionWith({ view: asked });
    fit(selection, { ...uniform(), features, pool }, null);
    assert.equal(selection.view, shown);
  });

test("view relevance requires a method", () => {
  assert.equal(stateOf({ view: "relevance" }, uniform(), METHOD).selection.view, "relevance");
});

test("hidden patches outside of the grid are dropped", () => {
  for (const { patches } of cases.hidden) {
    const selection = selectionWith({ hidden: [...patches, 12, -1, 0.5] });
    fit(selection, uniform({ grid: [3, 4] }), null);
    assert.deepEqual(selection.hidden, patches);
  }
});

test("an unknown colour map is replaced by the payload's first", () => {
  assert.equal(stateOf({ colormap: "../x" }).selection.colormap, "gray");
});

test("fusions equal Python's", () => {
  for (const fusion of cases.fusions) assert.ok(isFusion(fusion));
  for (const other of ["median", 0, null, "MEAN"]) assert.ok(!isFusion(other));
});

test("settings of rollout equal Python's", () => {
  assert.deepEqual(stateOf({ view: "rollout" }).settings, cases.rollout_settings);
  assert.deepEqual(stateOf({ view: "relevance" }, uniform(), METHOD).settings, ["start_block"]);
  assert.deepEqual(stateOf().settings, []);
});

for (const { here, there, tokens } of cases.counterparts)
  test(`tokens of ${JSON.stringify(here)} in ${JSON.stringify(there)}`, () => {
    for (const [token, other] of tokens) assert.equal(counterpart(token, layoutOf(here), layoutOf(there)), other, `token ${token}`);
    assert.equal(counterpart(-1, layoutOf(here), layoutOf(there)), -1);
  });

for (const { here, there, tokens } of cases.generated_counterparts)
  test(`every token of ${here.grid} in ${there.grid}`, () => {
    assert.deepEqual(tokens.map((_, token) => counterpart(token, layoutOf(here), layoutOf(there))), tokens);
  });

// ---- derived state ------------------------------------------------------------------------------------------

test("the query follows the pointer unless a token is pinned; a finger always moves it", () => {
  const state = stateOf({ token: 3 });
  assert.equal(state.query, 3);
  state.hovered = 5;
  assert.equal(state.query, 5);
  state.selection.pinned = true;
  assert.equal(state.query, 3);
  state.touching = true;
  assert.equal(state.query, 5);
});

test("the pooling query ignores the pointer and belongs to no token", () => {
  const state = pooled();
  state.hovered = 5;
  assert.deepEqual([state.queryFixed, state.hasDirection, state.query, state.queryOf("pool")], [true, false, 0, -1]);
  assert.deepEqual(state.cell, { r: 3, c: 2 });
  assert.equal(state.view, "pool");
});

test("a class's map belongs to the class until a token is hovered or pinned", () => {
  const state = stateOf({ view: "relevance" }, uniform(), METHOD);
  assert.equal(state.queryOf("relevance"), -1);
  state.hovered = 5;
  assert.equal(state.queryOf("relevance"), 5);
  state.endHover();
  state.pin(4);
  assert.equal(state.queryOf("relevance"), 4);
});

test("a method without maps of tokens ignores the pointer", () => {
  const state = stateOf({ view: "relevance" }, uniform(), { ...METHOD, chain: "", tokens: false });
  state.hovered = 5;
  assert.deepEqual([state.queryOf("relevance"), state.queryFixed, state.hasDirection], [-1, true, false]);
  state.pin(5);
  assert.equal(state.selection.view, "attention"); // a view that has maps of tokens
});

test("rollout of a large model ignores the pointer, because Python computes it", () => {
  const payload = uniform();
  assert.equal(stateOf({ view: "rollout" }, payload).queryFixed, false);
  payload.quick = false;
  assert.equal(stateOf({ view: "rollout" }, payload).queryFixed, true);
});

test("a previewed grid cell takes precedence over the selection", () => {
  const state = stateOf({ view: "rollout", block: 1, head: "max" });
  assert.deepEqual([state.cell, state.view], [{ r: 2, c: 0 }, "rollout"]);
  assert.equal(state.hoverCell({ r: 0, c: 1 }), "pointed");
  assert.equal(state.hoverCell({ r: 0, c: 1 }), "");
  assert.deepEqual([state.cell, state.view, state.selectedCell], [{ r: 0, c: 1 }, "attention", { r: 2, c: 0 }]);
  assert.equal(state.hoverCell(null), "pointed");
  assert.equal(state.view, "rollout");
});

test("the first row and column keep the last fusion", () => {
  const state = stateOf({ block: "max", head: "min" });
  state.selectCell({ r: 2, c: 2 });
  state.rememberFusions();
  assert.deepEqual([state.selection.block, state.selection.head], [1, 1]);
  assert.deepEqual([state.blockOf(0), state.headOf(0), state.blockOf(2)], ["max", "min", 1]);
});

// ---- user actions -------------------------------------------------------------------------------------------

test("hovering sets the query, or the key if the query is pinned", () => {
  const state = stateOf();
  assert.equal(state.hoverToken(4), "pointed");
  assert.equal(state.hoverToken(4), "");
  assert.deepEqual([state.hovered, state.readKey], [4, -1]);
  state.pin(4);
  state.hoverToken(6);
  assert.deepEqual([state.query, state.readKey], [4, 6]);
  assert.equal(state.endHover(), "pointed");
  assert.equal(state.endHover(), "");
});

test("a click pins, a second click restores the previous token", () => {
  const state = stateOf({ token: 1 });
  assert.equal(state.togglePin(4), "chosen");
  assert.deepEqual([state.selection.token, state.selection.pinned], [4, true]);
  state.togglePin(5);
  assert.equal(state.selection.token, 5);
  assert.equal(state.togglePin(5), "chosen");
  assert.deepEqual([state.selection.token, state.selection.pinned], [1, false]);
});

test("unpinning a token from a link selects the first token", () => {
  const state = stateOf({ token: 6, pinned: true });
  state.release();
  assert.equal(state.selection.token, 0);
});

test("release leaves the pooling query first, then the hovered token, then has no effect", () => {
  const state = pooled();
  assert.equal(state.release(), "chosen");
  assert.equal(state.selection.view, "attention");
  state.hoverToken(4);
  assert.equal(state.release(), "pointed");
  assert.equal(state.hovered, -1);
  assert.equal(state.release(), "");
});

test("the class token is found by name", () => {
  const state = stateOf();
  state.pin(5);
  assert.equal(state.selectClassToken(), "chosen");
  assert.deepEqual([state.selection.token, state.selection.pinned, state.defaultToken], [1, false, 1]);
  assert.equal(stateOf({}, uniform({ prefix: [] })).selectClassToken() && 0, 0);
});

test("arrows move the query inside the grid", () => {
  const layout = layoutOf({ prefix: ["cls"], grid: [2, 3] });
  const moved = (token, down, right) => neighbour(token, layout, down, right);
  assert.equal(moved(0, 0, 1), 1 + 1 * 3 + 1); // the middle patch
  assert.deepEqual([moved(1, 0, -1), moved(1, -1, 0), moved(1, 0, 1), moved(1, 1, 0)], [1, 1, 2, 4]);
  assert.deepEqual([moved(6, 0, 1), moved(6, 1, 0)], [6, 6]);
  const state = stateOf();
  assert.equal(state.move(0, 1), "pointed");
  assert.equal(state.query, 2 + 1 * 3 + 1);
  state.pin(2);
  assert.equal(state.move(0, 1), "chosen");
  assert.equal(state.selection.token, 3);
});

test("cells outside of the grid cannot be selected, and the last row is the pooling query", () => {
  const state = stateOf();
  for (const cell of [{ r: -1, c: 0 }, { r: 0, c: -1 }, { r: 3, c: 0 }, { r: 0, c: 3 }]) assert.equal(state.selectCell(cell), "");
  const other = pooled({ view: "attention" });
  assert.equal(other.selectCell({ r: 3, c: 1 }), "chosen");
  assert.deepEqual([other.selection.view, other.selection.head, other.selection.block], ["pool", 0, 0]);
  other.selectCell({ r: 2, c: 1 });
  assert.deepEqual([other.selection.view, other.selection.block], ["attention", 1]);
});

test("toggling a view twice returns to attention", () => {
  const state = stateOf();
  state.toggleView("rollout");
  assert.equal(state.selection.view, "rollout");
  state.toggleView("rollout");
  assert.equal(state.selection.view, "attention");
});

test("dragging hides patches or restores them", () => {
  const state = stateOf({ hidden: [4] });
  state.beginStroke(2);
  assert.deepEqual([state.strokeOver(2), state.strokeOver(0), state.strokeOver(4)], [true, true, false]);
  assert.deepEqual(state.selection.hidden, [0, 2, 4]);
  state.beginStroke(2);
  state.strokeOver(2);
  assert.deepEqual(state.selection.hidden, [0, 4]);
  state.swapHidden();
  assert.deepEqual(state.selection.hidden, [1, 2, 3, 5]);
});

test("keys hide patches without changing the map or the query", () => {
  const state = stateOf({ view: "rollout", token: 1 });
  assert.deepEqual([state.toggleHidden(), state.move(0, 1, true), state.toggleHidden()], ["", "pointed", "chosen"]);
  const first = state.readKey;
  state.move(0, -1, true);
  state.toggleHidden();
  assert.deepEqual(state.selection.hidden, [first - 1 - state.payload.split, first - state.payload.split]);
  state.toggleHidden();
  assert.deepEqual(state.selection.hidden, [first - state.payload.split]);
  assert.deepEqual([state.selection.view, state.selection.token, state.selection.pinned], ["rollout", 1, false]);
});

test("a new selection is a copy of the seed", () => {
  const seed = selectionWith({ token: 3 });
  const state = stateOf();
  state.hovered = 5;
  state.setSelection(seed);
  state.pin(4);
  assert.deepEqual([seed.token, state.hovered, state.defaultToken], [3, -1, 3]);
});

test("switching the payload resets hover and tokens that do not exist", () => {
  const state = stateOf({ token: 7 });
  state.hoverToken(6);
  state.hoverCell({ r: 1, c: 1 });
  state.setPayload(uniform({ prefix: [], grid: [1, 2] }));
  state.fitSelection();
  assert.deepEqual([state.hovered, state.preview, state.selection.token, state.defaultToken], [-1, null, 0, 0]);
});

// ---- linked viewers -----------------------------------------------------------------------------------------

test("a follower hovers over the same place and keeps its own view and hidden patches", () => {
  const leader = stateOf({ block: 1, hidden: [1] });
  const follower = stateOf({ view: "rollout", hidden: [3] }, uniform({ prefix: ["cls"], grid: [4, 6] }));
  leader.hoverToken(2 + 5);
  leader.hoverCell({ r: 2, c: 1 });
  assert.equal(follower.follow(leader, true), true);
  assert.equal(follower.follow(leader, true), false);
  assert.equal(follower.hovered, 1 + 3 * 6 + 5);
  assert.deepEqual(follower.preview, { r: 2, c: 1 });
  assert.deepEqual([follower.selection.view, follower.selection.block, follower.selection.hidden], ["rollout", 1, [3]]);
  assert.equal(follower.follow(leader, false), true);
  assert.equal(follower.selection.view, "attention");
});

test("a follower with fewer maps does not preview maps that it lacks", () => {
  const leader = stateOf();
  const follower = stateOf({}, uniform({ blocks: 1, heads: 1 }));
  leader.hoverCell({ r: 2, c: 1 });
  follower.follow(leader, false);
  assert.equal(follower.preview, null);
});

test("features after another block, and components, require that they are available", () => {
  const selection = selectionWith({ view: "components", after_block: 0 });
  const payload = { ...uniform({ blocks: 3 }), features: {}, pool: null };
  fit(selection, payload, null, true);
  assert.deepEqual([selection.view, selection.after_block], ["components", 0]);
  fit(selection, payload, null, false);
  assert.deepEqual([selection.view, selection.after_block], ["attention", 2]);
});
