// Web worker that runs the model, so that the page stays responsive.

import { readPixels } from "./decode.js";
import { Model } from "./model.js";

/** @type {Promise<Model>} */
let model;

/** Request handlers by name. */
const HANDLERS = {
  /** @param {Uint8Array} bytes */
  async load(bytes) {
    model = Model.read(bytes);
    await model;
    return { result: null, transfer: [] };
  },
  /** @param {{ bitmap: ImageBitmap, bytes: Uint8Array, type: string }} picture from `decodePicture` */
  async classify({ bitmap, bytes, type }) {
    const { pixels, width, height } = readPixels(bitmap);
    const result = (await model).classify(pixels, { bytes, type, width, height });
    return { result, transfer: [result.payload.buffer] };
  },
  /** @param {number[]} patches */
  async occlude(patches) {
    return { result: (await model).occlude(patches), transfer: [] };
  },
  /** @param {{ block: number, head: number, token: number, other: number }} of */
  async trace(of) {
    return { result: (await model).trace(of), transfer: [] };
  },
};

addEventListener("message", async ({ data: { id, name, content } }) => {
  const port = /** @type {{ postMessage(message: object, transfer: Transferable[]): void }} */ (/** @type {unknown} */ (globalThis));
  try {
    const { result, transfer } = await HANDLERS[/** @type {keyof typeof HANDLERS} */ (name)](/** @type {any} */ (content));
    port.postMessage({ id, result }, /** @type {Transferable[]} */ (transfer));
  } catch (error) {
    port.postMessage({ id, error: /** @type {Error} */ (error).message || "failed" }, []);
  }
});
