// Fetches the payload that Python offers and keeps it as long as the feeder is mounted.

import { PAYLOAD_EVENT, announcePayload, releasePayload, fetchPayload, hasPayload, namePayload } from "./payload_registry.js";

/** @import { Mount } from "./types" */

/** @type {WeakMap<HTMLElement, { id: string, stop: () => void }>} */
const mounted = new WeakMap(); // by parentElement

/** @param {Mount} mount `data` may hold the payload's name, its header, and `more`: Python can compute more of it */
export default ({ data, parentElement, setTriggerValue }) => {
  const before = mounted.get(parentElement);
  const id = data?.payload ?? "";
  if (id !== before?.id) {
    before?.stop();
    if (id && data.header) announcePayload(id, JSON.parse(data.header));
    // Relative, because a proxy may serve the app below a path; pages are one level deep, as for Streamlit's own files.
    if (id) fetchPayload(id, new URL(`.${data.address}`, document.baseURI));
    if (id && data.name) namePayload(data.name, id);
    if (before?.id) releasePayload(before.id);
    const stop = data?.more ? whenReceived(id, () => setTriggerValue("more", id)) : () => {};
    mounted.set(parentElement, { id, stop });
  }
  return () => {
    const last = mounted.get(parentElement);
    last?.stop();
    if (last?.id) releasePayload(last.id);
    mounted.delete(parentElement);
  };
};

/**
 * Call `act` once a payload has arrived and the page is visible; returns a function that cancels this.
 *
 * @param {string} id
 * @param {() => void} act
 */
function whenReceived(id, act) {
  let received = hasPayload(id);
  let cancelled = false;
  const check = () => {
    if (cancelled || !received || document.hidden) return;
    stop();
    act();
  };
  const arrived = (/** @type {Event} */ event) => {
    received ||= /** @type {CustomEvent<string>} */ (event).detail === id;
    check();
  };
  const stop = () => {
    cancelled = true;
    globalThis.removeEventListener(PAYLOAD_EVENT, arrived);
    document.removeEventListener("visibilitychange", check);
  };
  globalThis.addEventListener(PAYLOAD_EVENT, arrived);
  document.addEventListener("visibilitychange", check);
  setTimeout(check); // the payload may have arrived already
  return stop;
}
