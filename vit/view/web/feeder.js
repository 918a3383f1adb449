// Fetches the payload that Python offers and keeps it as long as the feeder is mounted.

import { PAYLOAD_EVENT, announcePayload, dropPayload, fetchPayload, hasPayload, namePayload } from "./payload_registry.js";

/** @import { Mount } from "./types" */

/** @type {WeakMap<HTMLElement, { id: string, stop: () => void }>} */
const fed = new WeakMap(); // by parentElement

/** @param {Mount} mount `data` may hold the payload's name, its header, and `more`: Python can compute more of it */
export default ({ data, parentElement, setTriggerValue }) => {
  const before = fed.get(parentElement);
  const id = data?.payload ?? "";
  if (id !== before?.id) {
    before?.stop();
    if (id && data.header) announcePayload(id, JSON.parse(data.header));
    // Relative, because a proxy may serve the app below a path; pages are one level deep, as for Streamlit's own files.
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
 * Call `act` once a payload has arrived and the page is visible; returns a function that cancels this.
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
  setTimeout(look); // the payload may have arrived already
  return stop;
}
