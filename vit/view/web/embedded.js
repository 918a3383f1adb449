// Reads the viewer's message and payloads that `vit.view.standalone_page` embedded in the page.

import { inflate } from "./bytes.js";
import { storePayload } from "./payload_registry.js";

/** @import { Message } from "./types" */

/** @param {string} id */
const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** @param {string} text base64 */
const decodeBase64 = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/**
 * Store the embedded payloads and return the viewer's message.
 *
 * @returns {Promise<Message>}
 */
export async function readEmbedded() {
  const { data, payloads } = JSON.parse(element("data").textContent ?? "");
  for (const id of payloads) {
    storePayload(id, await inflate(decodeBase64(element(id).textContent ?? ""), "gzip"));
    element(id).remove();
  }
  return data;
}
