// Reads the binary format of `vit.view.payload`: a JSON header followed by sections of numbers. No DOM access.

/** @import { Header } from "./types" */
/**
 * @template T
 * @typedef {{ new (buffer: ArrayBufferLike, offset: number, length: number): T, BYTES_PER_ELEMENT: number }} Numbers
 */
/** @typedef {<T>(name: string, Type: Numbers<T>) => T} Section returns a section as a typed array */

/** @type {Float32Array | null} */
let halves = null;

/** Return the lookup table from float16 bits to float32 values. */
function halfTable() {
  if (halves) return halves;
  halves = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    const size =
      exponent === 31 ? (fraction ? NaN : Infinity)
      : exponent === 0 ? fraction * 2 ** -24
      : (1 + fraction / 1024) * 2 ** (exponent - 15);
    halves[bits] = bits & 32768 ? -size : size;
  }
  return halves;
}

/**
 * Decode float16 numbers, beginning at `start`, until out is full.
 *
 * @param {Uint16Array} from
 * @param {number} start
 * @param {Float32Array} out
 */
export function decodeHalves(from, start, out) {
  const table = halfTable();
  for (let i = 0; i < out.length; i++) out[i] = table[from[start + i]];
  return out;
}

/**
 * Encode numbers as float16 bits, rounded to the nearest. Numbers must be within the range of float16.
 *
 * @param {ArrayLike<number>} numbers
 */
export function encodeHalves(numbers) {
  return Uint16Array.from(numbers, (number) => {
    if (number === 0) return 0;
    const size = Math.abs(number);
    const exponent = Math.max(Math.floor(Math.log2(size)), -14); // below, numbers are subnormal
    // A fraction of 1024 carries into the exponent bits, which is the next power of two.
    const fraction = Math.round((size / 2 ** exponent) * 1024);
    return (number < 0 ? 32768 : 0) + fraction + ((exponent + 14) << 10);
  });
}

/**
 * Parse packed bytes; returns their header and a function that reads a section.
 *
 * @param {Uint8Array} bytes
 */
export function openPayload(bytes) {
  const start = new DataView(bytes.buffer, bytes.byteOffset, 8);
  if (String.fromCharCode(...bytes.subarray(0, 4)) !== "vit1") throw new Error("not a viewer payload");
  /** @type {Header} */
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + start.getUint32(4, true))));
  /** @type {Section} */
  const section = (name, Type) => {
    const [offset, length] = header.sections[name];
    return new Type(bytes.buffer, bytes.byteOffset + offset, length / Type.BYTES_PER_ELEMENT);
  };
  return { header, section };
}

/**
 * Decompress bytes. Uses no Blob, which Safari cannot read in the worker of a page from disk.
 *
 * @param {Uint8Array} bytes
 * @param {CompressionFormat} format
 */
export async function inflate(bytes, format) {
  const stream = /** @type {any} */ (new Response(/** @type {any} */ (bytes)).body).pipeThrough(new DecompressionStream(format));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
