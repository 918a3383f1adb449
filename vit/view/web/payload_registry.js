// The payloads of this browser window, by id. Feeders add bytes, viewers read decoded payloads. Either may be mounted
// first, so a viewer without a payload listens for PAYLOAD_EVENT. The maps are global because feeder and viewer are
// bundled into separate modules, each with its own copy of this one.

/** @import { Header } from "./types" */

const payloads = (globalThis.__vitPayloads ??= new Map()); // id: {bytes, decoded, feeders}; bytes until decoded
const headers = (globalThis.__vitHeaders ??= new Map()); // id: header of a payload, possibly still loading
const names = (globalThis.__vitNames ??= new Map()); // name: id of its current payload
export const PAYLOAD_EVENT = "vit-payload";
export const HEADER_EVENT = "vit-header";

const FIRST_WAIT = 200; // [ms] before the first retry of a fetch; doubles up to LONGEST_WAIT
const LONGEST_WAIT = 5000;

/**
 * Store a payload and notify the viewers.
 *
 * @param {string} id
 * @param {Uint8Array} bytes
 */
export function storePayload(id, bytes) {
  const entry = payloads.get(id) ?? { bytes: null, decoded: null, feeders: 1 };
  payloads.set(id, entry);
  if (!entry.decoded) entry.bytes = bytes;
  globalThis.dispatchEvent(new CustomEvent(PAYLOAD_EVENT, { detail: id }));
}

/**
 * Fetch a payload from the server once for all feeders. Retries until it succeeds or no feeder needs it any more.
 *
 * @param {string} id
 * @param {URL} address
 */
export async function fetchPayload(id, address) {
  const existing = payloads.get(id);
  if (existing) {
    existing.feeders += 1;
    return;
  }
  const entry = { bytes: null, decoded: null, feeders: 1 };
  payloads.set(id, entry);
  for (let wait = FIRST_WAIT; payloads.get(id) === entry; wait = Math.min(2 * wait, LONGEST_WAIT)) {
    try {
      // Range responses are not compressed, and the server would take longer to compress a payload than to send it.
      const answer = await fetch(address, { headers: { Range: "bytes=0-" } });
      if (answer.ok) {
        const bytes = new Uint8Array(await answer.arrayBuffer());
        if (payloads.get(id) === entry) storePayload(id, bytes);
        return;
      }
    } catch {} // the server is unreachable
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

/**
 * Publish the header of a payload before its bytes arrive.
 *
 * @param {string} id
 * @param {Header} header
 */
export function announcePayload(id, header) {
  headers.set(id, header);
  globalThis.dispatchEvent(new CustomEvent(HEADER_EVENT, { detail: id }));
}

/**
 * Return a payload's header; undefined if it was not announced.
 *
 * @param {string} id
 */
export function headerOf(id) {
  return headers.get(id);
}

/**
 * Whether a payload has arrived.
 *
 * @param {string} id
 */
export function hasPayload(id) {
  const entry = payloads.get(id);
  return Boolean(entry?.bytes || entry?.decoded);
}

/**
 * Release a feeder's reference; the last one deletes the payload.
 *
 * @param {string} id
 */
export function releasePayload(id) {
  const entry = payloads.get(id);
  if (!entry || --entry.feeders > 0) return;
  payloads.delete(id);
  headers.delete(id);
}

/**
 * Return a payload, decoded once and cached for all viewers; null until its bytes arrive.
 *
 * @template T
 * @param {string} id
 * @param {(bytes: Uint8Array) => T} decode
 * @returns {T | null}
 */
export function findPayload(id, decode) {
  const entry = payloads.get(id);
  if (entry?.bytes) {
    entry.decoded = decode(entry.bytes);
    entry.bytes = null; // the decoded payload keeps views of the buffer
  }
  return entry ? entry.decoded : null;
}

/**
 * Point a name to a payload.
 *
 * @param {string} name
 * @param {string} id
 */
export function namePayload(name, id) {
  names.set(name, id);
}

/**
 * Return the id of the payload with a name or an id.
 *
 * @param {string} name
 * @returns {string}
 */
export function idOf(name) {
  return names.get(name) ?? name;
}

/**
 * Return the payload with a name or an id, see `findPayload`.
 *
 * @template T
 * @param {string} name
 * @param {(bytes: Uint8Array) => T} decode
 */
export function findPayloadByName(name, decode) {
  return findPayload(idOf(name), decode);
}
