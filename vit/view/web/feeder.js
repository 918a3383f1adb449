// Has the payload that Python offers fetched and kept for as long as the feeder is on the page.

import { dropPayload, fetchPayload } from "./payload_registry.js";

/** @import { Mount } from "./types" */

/** @type {WeakMap<HTMLElement, string>} */
const fed = new WeakMap(); // parentElement: id

/** @param {Mount} mount */
export default ({ data, parentElement }) => {
  const before = fed.get(parentElement);
  const id = data?.payload;
  if (id !== before) {
    // Pages lie one level deep, so that this holds below any path of a proxy, as for Streamlit's own files.
    if (id) fetchPayload(id, new URL(`.${data.address}`, document.baseURI));
    if (before) dropPayload(before);
    fed.set(parentElement, id);
  }
  return () => {
    const last = fed.get(parentElement);
    if (last) dropPayload(last);
    fed.delete(parentElement);
  };
};
