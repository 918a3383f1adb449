// The payloads of this browser window, by id. Feeders put bytes in, views take decoded payloads out; either may
// be mounted first, so a view that finds nothing listens for the event.

const payloads = (globalThis.__vitPayloads ??= new Map()); // id: {bytes, decoded, feeders}
const PAYLOAD_EVENT = "vit-payload";

function storePayload(id, bytes) {
  const entry = payloads.get(id);
  if (entry) {
    entry.feeders += 1;
    return;
  }
  payloads.set(id, { bytes, decoded: null, feeders: 1 });
  globalThis.dispatchEvent(new CustomEvent(PAYLOAD_EVENT, { detail: id }));
}

function dropPayload(id) {
  const entry = payloads.get(id);
  if (entry && --entry.feeders === 0) payloads.delete(id);
}

/** The payload, decoded once however many views show it; null until its feeder brought it. */
function takePayload(id, decode) {
  const entry = payloads.get(id);
  if (entry && !entry.decoded) {
    entry.decoded = decode(entry.bytes);
    entry.bytes = null; // the decoded payload holds them
  }
  return entry ? entry.decoded : null;
}
