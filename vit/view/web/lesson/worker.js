// Web worker that runs the model, so that the page stays responsive.

import { decoded } from "./decode.js";
import { Model } from "./model.js";

/** @type {Promise<Model>} */
let model;

/** Request handlers by name. */
const ANSWERS = {
  /** @param {Uint8Array} bytes */
  async read(bytes) {
    model = Model.read(bytes);
    await model;
    return { result: null, moved: [] };
  },
  /** @param {Blob} file */
  async look(file) {
    const { pixels, width, height } = await decoded(file);
    const bytes = new Uint8Array(await file.arrayBuffer());
    const result = (await model).look(pixels, { bytes, type: file.type, width, height });
    return { result, moved: [result.payload.buffer] };
  },
  /** @param {number[]} patches */
  async without(patches) {
    return { result: (await model).without(patches), moved: [] };
  },
  /** @param {{ block: number, head: number, token: number, other: number }} of */
  async follow(of) {
    return { result: (await model).follow(of), moved: [] };
  },
};

addEventListener("message", async ({ data: { id, name, content } }) => {
  const port = /** @type {{ postMessage(message: object, moved: Transferable[]): void }} */ (/** @type {unknown} */ (globalThis));
  try {
    const { result, moved } = await ANSWERS[/** @type {keyof typeof ANSWERS} */ (name)](/** @type {any} */ (content));
    port.postMessage({ id, result }, /** @type {Transferable[]} */ (moved));
  } catch (error) {
    port.postMessage({ id, error: /** @type {Error} */ (error).message || "failed" }, []);
  }
});
