// A checkpoint read from the page: computes attention and class probabilities of a picture. No DOM access.

import { inflate, openPayload } from "../../view/web/bytes.js";
import { packMaps } from "./maps_payload.js";
import { prepare } from "./preprocess.js";
import { trace } from "./trace.js";
import { VisionTransformer } from "./transformer.js";
import { readWeights } from "./weights.js";

/** @import { LessonHeader } from "./types" */

/** A checkpoint and its last picture. */
export class Model {
  /**
   * @param {LessonHeader} header
   * @param {VisionTransformer} transformer
   * @param {Record<string, Uint8Array>} colormaps
   */
  constructor(header, transformer, colormaps) {
    this.header = header;
    this.transformer = transformer;
    this.colormaps = colormaps;
    /** @type {Float32Array} */
    this.input = new Float32Array(0); // of the last picture
    /** @type {Float32Array | null} */
    this.lastInput = null; // input whose activations the transformer holds
  }

  /** @param {Uint8Array} bytes written by `vit.lesson.page.model_bytes` */
  static async read(bytes) {
    const { header, section } = openPayload(bytes);
    const lesson = /** @type {LessonHeader} */ (/** @type {unknown} */ (header));
    const weights = readWeights(lesson.tensors, lesson.middle, await inflate(section("weights", Uint8Array), "deflate"));
    const tensor = (/** @type {string} */ name) => /** @type {Float32Array} */ (weights.get(name));
    const colormaps = Object.fromEntries(lesson.colormaps.map((name) => [name, section(`colormap:${name}`, Uint8Array)]));
    return new Model(lesson, new VisionTransformer(lesson.config, tensor), colormaps);
  }

  /**
   * Run the model on a picture.
   *
   * @param {Uint8ClampedArray | Uint8Array} pixels (height, width, 4)
   * @param {{ bytes: Uint8Array, type: string, width: number, height: number }} picture encoded file, for display
   */
  classify(pixels, picture) {
    const { input, box } = prepare(this.header.preprocess, pixels, picture.width, picture.height);
    this.input = input;
    const probabilities = this.pass(input);
    return { payload: packMaps(this.transformer, picture, box, this.colormaps), probabilities, input, engine: this.engine };
  }

  /**
   * Return the class probabilities with patches replaced by the picture's mean colour, like
   * `vit.explain.occlusion.hide_patches`.
   *
   * @param {number[]} patches
   */
  occlude(patches) {
    return this.pass(this.replacePatches(patches));
  }

  /** @param {number[]} patches */
  replacePatches(patches) {
    const { image_size: [height, width], patch_size: side, channels } = this.header.config;
    const changed = this.input.slice();
    for (let channel = 0; channel < channels; channel++) {
      const plane = changed.subarray(channel * height * width, (channel + 1) * height * width);
      const mean = plane.reduce((sum, value) => sum + value, 0) / plane.length;
      for (const patch of patches) {
        const top = Math.floor(patch / (width / side)) * side, left = (patch % (width / side)) * side;
        for (let y = top; y < top + side; y++) plane.fill(mean, y * width + left, y * width + left + side);
      }
    }
    return changed;
  }

  /**
   * Trace a token through a block, see trace.js.
   *
   * @param {{ block: number, head: number, token: number, other: number }} of
   */
  trace({ block, head, token, other }) {
    if (this.lastInput !== this.input) this.pass(this.input); // the last pass had hidden patches
    return trace(this.transformer, block, head, token, other);
  }

  /** Name of the compute engine, the same in all languages. */
  get engine() {
    return this.transformer.space.engine;
  }

  /**
   * @param {Float32Array} input
   * @returns {Float64Array} probability of each class
   */
  pass(input) {
    this.lastInput = input;
    return this.transformer.run(input);
  }
}
