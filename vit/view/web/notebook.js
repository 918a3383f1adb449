// The viewer in a frame of a notebook: as in a file, and where a kernel is listening it hears what is chosen.
//
// The frame has no rights on the notebook's page; the two exchange messages, each with the name of the view.

import { readHeld } from "./held.js";
import { storePayload } from "./payload_registry.js";
import { mount } from "./viewer.js";

let data = await readHeld();
const { name } = data;
const parentElement = /** @type {HTMLElement} */ (document.querySelector("main"));

/** @param {object} message */
const tell = (message) => parent.postMessage({ view: name, ...message }, "*");

const show = () => mount({ data, parentElement, setStateValue: (_, chosen) => tell({ chosen }) });
const tellHeight = () => tell({ height: Math.ceil(parentElement.getBoundingClientRect().height) });

addEventListener("message", ({ source, data: message }) => {
  if (source !== parent || message?.view !== name) return;
  if (message.scheme) document.documentElement.style.colorScheme = message.scheme === "normal" ? "" : message.scheme;
  if (message.asks === "who") tell({ here: true });
  if (message.told) {
    for (const { id, bytes } of message.payloads) storePayload(id, new Uint8Array(bytes));
    data = { ...data, ...message.told };
    show();
  }
});

show();
new ResizeObserver(tellHeight).observe(parentElement);
tell({ here: true });
