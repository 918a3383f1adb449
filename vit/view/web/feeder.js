// Has the payload that Python offers fetched and kept for as long as the feeder is on the page.

import { PAYLOAD_EVENT, announcePayload, dropPayload, fetchPayload, hasPayload, namePayload } from "./payload_registry.js";

/** @import { Mount } from "./types" */

/** @type {WeakMap<HTMLElement, { id: string, stop: () => void }>} */
const fed = new WeakMap(); // by parentElement

/** @param {Mount} mount whose data may name the payload, say what it will be, and that there is more of it for who asks */
export default ({ data, parentElement, setTriggerValue }) => {
  const before = fed.get(parentElement);
  const id = data?.payload ?? "";
  if (id !== before?.id) {
    before?.stop();
    if (id && data.header) announcePayload(id, JSON.parse(data.header));
    // Pages lie one level deep, so that this holds below any path of a proxy, as for Streamlit's own files.
    if (id) fetchPayload(id, new URL(`.${data.address}`, document.baseURI));
    if (id && data.name) namePayload(data.name, id);
    if (before?.id) dropPayload(before.id);
    const stop = data?.more ? whenHere(id, () => setTriggerValue("more", id)) : () => {};
    fed.set(parentElement, { id, stop });
  }
  return () => {
    const last = fed.get(parentElement);
    last?.stop();
    if (last?.id) dropPayload(last.id);
    fed.delete(parentElement);
  };
};

/**
 * Do something once a payload has come and somebody looks at the page; gives what ends the waiting.
 *
 * @param {string} id
 * @param {() => void} act
 */
function whenHere(id, act) {
  let here = hasPayload(id);
  let over = false;
  const look = () => {
    if (over || !here || document.hidden) return;
    stop();
    act();
  };
  const arrived = (/** @type {Event} */ event) => {
    here ||= /** @type {CustomEvent<string>} */ (event).detail === id;
    look();
  };
  const stop = () => {
    over = true;
    globalThis.removeEventListener(PAYLOAD_EVENT, arrived);
    document.removeEventListener("visibilitychange", look);
  };
  globalThis.addEventListener(PAYLOAD_EVENT, arrived);
  document.addEventListener("visibilitychange", look);
  setTimeout(look); // it may have been here before
  return stop;
}
