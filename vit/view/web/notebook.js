// The viewer in a notebook's frame: works like the standalone file, and exchanges selections with a kernel if one runs.
//
// The frame is sandboxed and cannot access the notebook's page. They use postMessage, with the view's name as key.

import { readEmbedded } from "./embedded.js";
import { storePayload } from "./payload_registry.js";
import { mount } from "./viewer.js";

let data = await readEmbedded();
const { name } = data;
const parentElement = /** @type {HTMLElement} */ (document.querySelector("main"));

/** @param {object} message */
const post = (message) => parent.postMessage({ view: name, ...message }, "*");

const show = () => mount({ data, parentElement, setStateValue: (_, chosen) => post({ chosen }) });
const postHeight = () => post({ height: Math.ceil(parentElement.getBoundingClientRect().height) });

addEventListener("message", ({ source, data: message }) => {
  if (source !== parent || message?.view !== name) return;
  if (message.scheme) document.documentElement.style.colorScheme = message.scheme === "normal" ? "" : message.scheme;
  if (message.request === "announce") post({ here: true });
  if (message.update) {
    for (const { id, bytes } of message.payloads) storePayload(id, new Uint8Array(bytes));
    data = { ...data, ...message.update };
    show();
  }
});

show();
new ResizeObserver(postHeight).observe(parentElement);
post({ here: true });
