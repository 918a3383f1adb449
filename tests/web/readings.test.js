import assert from "node:assert/strict";
import { test } from "node:test";

import { Readings } from "../../vit/view/web/readings.js";

/** Return the four readings of a page that has nothing else. */
function readings() {
  const boxes = Array.from({ length: 4 }, () => ({ title: "", children: [{}, {}, {}] }));
  return new Readings({ root: { querySelectorAll: () => boxes } });
}

const MAP = { values: [0.4, 0.1, 0.2, 0.3], at: 0, payload: { prefix: ["cls"], split: 1, tokens: 4, cols: 3, artefacts: [2] } };

test("every reading has a tooltip that explains its terms", () => {
  const shown = readings();
  shown.drawSpread({ sum: 1, entropy: 1 }, 4, false);
  assert.match(shown.boxes[0].title, /entropy.*uniform/i);
  shown.drawPrefix(MAP, 0.4, false);
  assert.match(shown.boxes[1].title, /class token.*× uniform: /);
  shown.drawStrongest(MAP, 3);
  assert.match(shown.boxes[2].title, /^× uniform: /);
});

test("the strongest patch is named an artefact if it is one", () => {
  const shown = readings();
  shown.drawStrongest(MAP, 3);
  assert.doesNotMatch(shown.rows[2][2].textContent, /artefact/);
  shown.drawStrongest(MAP, 2);
  assert.match(shown.rows[2][2].textContent, /an artefact$/);
  assert.match(shown.boxes[2].title, /outlying norm/);
});

test("prefix tokens are explained for models with none and with several", () => {
  const shown = readings();
  shown.drawPrefix({ ...MAP, payload: { ...MAP.payload, prefix: [], split: 0 } }, 0, false);
  assert.match(shown.boxes[1].title, /class token.*registers/);
  shown.drawPrefix({ ...MAP, payload: { ...MAP.payload, prefix: ["cls", "reg1"], split: 2 } }, 0.5, false);
  assert.equal(shown.rows[1][0].textContent, "On 2 prefix tokens");
  assert.match(shown.boxes[1].title, /class token.*registers/);
});
