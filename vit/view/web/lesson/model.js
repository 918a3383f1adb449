// A checkpoint out of the bytes in the page: a picture in, its attention and the answer out. No DOM here.

import { opened } from "../bytes.js";
import { packMaps } from "./maps_payload.js";
import { prepare } from "./preprocess.js";
import { trace } from "./trace.js";
import { VisionTransformer } from "./transformer.js";
import { inflated, readWeights } from "./weights.js";

/** @import { LessonHeader } from "../types" */

/** A checkpoint with the picture that it saw last. */
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
    this.input = new Float32Array(0); // of the picture
    /** @type {Float32Array | null} */
    this.passed = null; // whose numbers the transformer holds
  }

  /** @param {Uint8Array} bytes from `vit.view.lesson` */
  static async read(bytes) {
    const { header, section } = opened(bytes);
    const lesson = /** @type {LessonHeader} */ (/** @type {unknown} */ (header));
    const weights = readWeights(lesson.tensors, lesson.middle, await inflated(section("weights", Uint8Array)));
    const tensor = (/** @type {string} */ name) => /** @type {Float32Array} */ (weights.get(name));
    const colormaps = Object.fromEntries(lesson.colormaps.map((name) => [name, section(`colormap:${name}`, Uint8Array)]));
    return new Model(lesson, new VisionTransformer(lesson.config, tensor), colormaps);
  }

  /**
   * Look at a picture.
   *
   * @param {Uint8ClampedArray | Uint8Array} pixels (height, width, 4)
   * @param {{ bytes: Uint8Array, type: string, width: number, height: number }} picture the same, for display
   */
  look(pixels, picture) {
    const { input, box } = prepare(this.header.preprocess, pixels, picture.width, picture.height);
    this.input = input;
    const probabilities = this.pass(input);
    return { payload: packMaps(this.transformer, picture, box, this.colormaps), probabilities, input, engine: this.engine };
  }

  /**
   * The answer with patches replaced by the picture's mean colour, as `vit.explain.occlusion.hidden` does it.
   *
   * @param {number[]} patches
   */
  without(patches) {
    return this.pass(this.withoutPatches(patches));
  }

  /** @param {number[]} patches */
  withoutPatches(patches) {
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
   * Every number on a token's way through a block, see trace.js.
   *
   * @param {{ block: number, head: number, token: number, other: number }} of
   */
  follow({ block, head, token, other }) {
    if (this.passed !== this.input) this.pass(this.input); // with patches hidden it was another one
    return trace(this.transformer, block, head, token, other);
  }

  /** What computes: a name that is the same in all languages. */
  get engine() {
    return this.transformer.space.engine;
  }

  /**
   * @param {Float32Array} input
   * @returns {Float64Array} the probability of each class
   */
  pass(input) {
    this.passed = input;
    return this.transformer.run(input);
  }
}
