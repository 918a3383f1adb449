// The viewer in a file of its own: shows what `vit.view.standalone_page` put there, and tells nobody.

import { storePayload } from "./payload_registry.js";
import { mount } from "./viewer.js";

/** @param {string} id */
const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** @param {string} text in base64 */
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

const { data, payloads } = JSON.parse(element("data").textContent ?? "");
for (const id of payloads) {
  storePayload(id, bytes(element(id).textContent ?? ""));
  element(id).remove();
}
const parentElement = /** @type {HTMLElement} */ (document.querySelector("main"));
mount({ data, parentElement, setStateValue() {} });
