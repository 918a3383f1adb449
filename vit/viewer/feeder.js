// Keeps the payload that Python sent for as long as the feeder is on the page.

const ID_BYTES = 64;
const fed = new WeakMap(); // parentElement: id

export default ({ data, parentElement }) => {
  const before = fed.get(parentElement);
  const id = data ? new TextDecoder().decode(data.subarray(0, ID_BYTES)).trim() : undefined;
  if (id !== before) {
    if (id) storePayload(id, data.slice(ID_BYTES)); // a copy, so that sections are aligned
    if (before) dropPayload(before);
    fed.set(parentElement, id);
  }
  return () => {
    if (fed.get(parentElement)) dropPayload(fed.get(parentElement));
    fed.delete(parentElement);
  };
};
