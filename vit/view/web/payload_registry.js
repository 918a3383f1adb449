// The payloads of this browser window, by id. Feeders put bytes in, views take decoded payloads out; either may
// be mounted first, so a view that finds nothing listens for the event.

/** @import { Header } from "./types" */

const payloads = (globalThis.__vitPayloads ??= new Map()); // id: {bytes, decoded, feeders}; bytes until decoded
const headers = (globalThis.__vitHeaders ??= new Map()); // id: header of a payload that is on its way
const names = (globalThis.__vitNames ??= new Map()); // name: id of the payload that has it
export const PAYLOAD_EVENT = "vit-payload";
export const HEADER_EVENT = "vit-header";

const FIRST_WAIT = 200; // ms between the first two tries to fetch one
const LONGEST_WAIT = 5000;

/**
 * Keep a payload for whoever shows it.
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
 * Get a payload from the server, once for all feeders; again and again while it fails and one of them wants it.
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
      // A part of it, even the whole, comes as it is: the server would take longer to compress it than to send it.
      const answer = await fetch(address, { headers: { Range: "bytes=0-" } });
      if (answer.ok) {
        const bytes = new Uint8Array(await answer.arrayBuffer());
        if (payloads.get(id) === entry) storePayload(id, bytes);
        return;
      }
    } catch {} // the server is not there
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

/**
 * Say what a payload that is on its way will be.
 *
 * @param {string} id
 * @param {Header} header
 */
export function announcePayload(id, header) {
  headers.set(id, header);
  globalThis.dispatchEvent(new CustomEvent(HEADER_EVENT, { detail: id }));
}

/**
 * What a payload will be; undefined where nobody said it.
 *
 * @param {string} id
 */
export function headerOf(id) {
  return headers.get(id);
}

/**
 * Whether a payload has come.
 *
 * @param {string} id
 */
export function hasPayload(id) {
  const entry = payloads.get(id);
  return Boolean(entry?.bytes || entry?.decoded);
}

/**
 * A feeder wants it no more.
 *
 * @param {string} id
 */
export function dropPayload(id) {
  const entry = payloads.get(id);
  if (!entry || --entry.feeders > 0) return;
  payloads.delete(id);
  headers.delete(id);
}

/**
 * The payload, decoded once however many views show it; null until its feeder brought it.
 *
 * @template T
 * @param {string} id
 * @param {(bytes: Uint8Array) => T} decode
 * @returns {T | null}
 */
export function takePayload(id, decode) {
  const entry = payloads.get(id);
  if (entry?.bytes) {
    entry.decoded = decode(entry.bytes);
    entry.bytes = null; // the decoded payload holds them
  }
  return entry ? entry.decoded : null;
}

/**
 * From here on, a name means this payload.
 *
 * @param {string} name
 * @param {string} id
 */
export function namePayload(name, id) {
  names.set(name, id);
}

/**
 * The payload that has a name, or this id; see `takePayload`.
 *
 * @template T
 * @param {string} name
 * @param {(bytes: Uint8Array) => T} decode
 */
export function takeNamed(name, decode) {
  return takePayload(names.get(name) ?? name, decode);
}
