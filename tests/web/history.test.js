// Each user action creates one history entry, whatever Streamlit writes to the address in between.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { beforeEach, test } from "node:test";
import { runInThisContext } from "node:vm";

const program = `{${readFileSync(new URL("../../pages/server/history.js", import.meta.url), "utf8")}}`;

/** @type {string[]} */
let entries;
/** @type {Map<string, (() => void)[]>} */
let listeners;

/** @param {string} kind */
const happen = (kind) => listeners.get(kind)?.forEach((listen) => listen());

/** @param {string[]} addresses */
const write = (...addresses) => addresses.forEach((address) => globalThis.history.pushState({}, "", address));

/** @param {string | URL} url */
const short = (url) => new URL(url, globalThis.location.href).href.replace("http://here/", "");

beforeEach(() => {
  entries = ["explore?sample=cat"];
  listeners = new Map();
  const at = () => new URL(entries[entries.length - 1], "http://here/");
  Object.assign(globalThis, {
    addEventListener: (/** @type {string} */ kind, /** @type {() => void} */ listen) =>
      listeners.set(kind, [...(listeners.get(kind) ?? []), listen]),
    history: {
      pushState: (/** @type {unknown} */ _, /** @type {string} */ __, /** @type {string} */ url) => entries.push(short(url)),
      replaceState: (/** @type {unknown} */ _, /** @type {string} */ __, /** @type {string} */ url) => (entries[entries.length - 1] = short(url)),
    },
  });
  Object.defineProperty(globalThis, "location", {
    configurable: true,
    get: () => ({ href: at().href, pathname: at().pathname, search: at().search }),
  });
  runInThisContext(program);
});

test("a click that changes the query string twice creates one entry", () => {
  happen("pointerdown");
  write("explore?upload=a", "explore?upload=a&picture=1");
  assert.deepEqual(entries, ["explore?sample=cat", "explore?upload=a&picture=1"]);
  happen("pointerdown");
  write("explore?sample=dog");
  assert.equal(entries.length, 3);
});

test("changes before any user action create no entry", () => {
  entries = ["explore"];
  write("explore?sample=cat");
  assert.deepEqual(entries, ["explore?sample=cat"]);
});

test("changes that follow the browser's Back create no entry", () => {
  happen("popstate");
  write("explore?sample=dog");
  assert.deepEqual(entries, ["explore?sample=dog"]);
});

test("opening another page creates one entry, whether its path or its query string changes first", () => {
  happen("pointerdown");
  write("explore?a=1", "train?a=1");
  assert.deepEqual(entries, ["explore?sample=cat", "train?a=1"]);
  happen("pointerdown");
  write("runs", "runs?run=1");
  assert.deepEqual(entries, ["explore?sample=cat", "train?a=1", "runs?run=1"]);
});

test("a choice that also opens another page creates two entries", () => {
  happen("keydown");
  write("explore?name=mine", "explore?run=1", "runs?run=1");
  assert.deepEqual(entries, ["explore?sample=cat", "explore?name=mine", "runs?run=1"]);
});

test("opening a page with the same query string creates an entry", () => {
  happen("pointerdown");
  write("explore?a=1");
  happen("pointerdown");
  write("compare?a=1");
  assert.deepEqual(entries, ["explore?sample=cat", "explore?a=1", "compare?a=1"]);
});
