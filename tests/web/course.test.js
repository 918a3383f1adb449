import assert from "node:assert/strict";
import { test } from "node:test";

import { Course, STEPS } from "../../vit/lesson/web/course.js";
import { patchesToHide } from "../../vit/lesson/web/experiment.js";
import { decimal, translate, setTranslations } from "../../vit/view/web/words.js";

const at = (name) => {
  const course = new Course(6);
  course.go(STEPS.findIndex((step) => step.name === name));
  return course;
};
const chosen = (course, changes) => ({ kind: "chosen", selection: { ...course.initialSelection(79), ...changes } });

test("a step is completed once, only by the action that it asks for", () => {
  const course = at("heads");
  for (const changes of [{}, { head: "mean" }, { block: 3 }, { view: "rollout" }]) assert.equal(course.record(chosen(course, changes)), false);
  assert.equal(course.record({ kind: "lines" }), false);
  assert.equal(course.record(chosen(course, { head: 2 })), true);
  assert.equal(course.record(chosen(course, { head: 1 })), false);
  assert.deepEqual([...course.done], [course.number]);
});

test("every step can be completed", () => {
  const acts = {
    patches: { kind: "lines" }, tokens: { kind: "class token" }, numbers: { kind: "number" }, own: { kind: "picture" }, believe: { kind: "hidden" },
    looks: { direction: "to" }, heads: { head: 2 }, blocks: { block: 3 }, rollout: { view: "rollout" },
  };
  for (const { name } of STEPS) {
    const course = at(name);
    assert.ok(course.record(acts[name].kind ? acts[name] : chosen(course, acts[name])), name);
  }
});

test("explained controls stay visible after going back", () => {
  const course = at("rollout");
  course.go(0);
  assert.ok(course.hasExplained("rollout") && course.hasExplained("heads") && !course.hasExplained("numbers"));
  course.go(99);
  assert.equal(course.step.name, STEPS[STEPS.length - 1].name);
});

test("in a shallow model, steps show only existing blocks", () => {
  const course = new Course(1);
  for (let number = 0; number < STEPS.length; number++) {
    course.go(number);
    assert.equal(course.initialSelection(5).block, 0);
  }
});

test("equally many strongest and other patches are hidden, without overlap", () => {
  const values = Float32Array.from({ length: 40 }, (_, i) => (i * 7) % 40);
  const strongest = patchesToHide(values, true), others = patchesToHide(values, false);
  assert.equal(strongest.length, 6);
  assert.deepEqual(strongest.map((patch) => values[patch]).sort((a, b) => a - b), [34, 35, 36, 37, 38, 39]);
  assert.equal(new Set([...strongest, ...others]).size, 12);
});

test("texts are English by default, and placeholders are filled", () => {
  assert.equal(translate("head {head}", { head: 3 }), "head 3");
  assert.equal(decimal("1.5"), "1.5");
  setTranslations({ "head {head}": "Kopf {head} {other}", ".": "," });
  assert.equal(translate("head {head}", { head: 3 }), "Kopf 3 {other}");
  assert.equal(decimal("1.5"), "1,5");
  setTranslations({});
});
