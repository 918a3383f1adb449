// The forward pass on a graphics card, by WebGPU: what transformer.js computes, recorded once and run for each picture.
//
// Everything lies there as it lies in the workspace, address for address, so that what a pass left comes back to its
// place and whoever reads it need not know who computed it. Source: W3C, WebGPU and WebGPU Shading Language.

import { FIELDS, KERNELS } from "./kernels.js";
import { DISTANCE, Recorder } from "./recorder.js";

/** @import { Matrix } from "./workspace.js" */
/** @import { VisionTransformer } from "./transformer.js" */

const PROBABILITY = 1e-4, ATTENTION = 1e-5; // the largest differences to the processor's results
const SOFTWARE = /swiftshader|llvmpipe|lavapipe|softpipe|basic render/i; // no card: slower than WebAssembly

/** @typedef {{ at: number, count: number }} Range of numbers in the workspace */

/**
 * The device of a graphics card, and what computes there; null where there is none.
 *
 * @param {GPU | undefined} gpu of the browser
 * @param {boolean} software whether one that the processor plays will do: for tests
 */
export async function deviceOf(gpu, software) {
  try {
    const adapter = await gpu?.requestAdapter();
    if (!adapter) return null;
    const { vendor, architecture, description, isFallbackAdapter } = adapter.info;
    const name = description || [vendor, architecture].filter(Boolean).join(" ");
    if (!software && (isFallbackAdapter || SOFTWARE.test(`${name} ${architecture}`))) return null;
    return { device: await adapter.requestDevice(), engine: name ? `WebGPU (${name})` : "WebGPU" };
  } catch { // a browser that names a card and cannot have it
    return null;
  }
}

/** A model on a graphics card. */
export class GpuPass {
  /**
   * @param {VisionTransformer} transformer
   * @param {GPUDevice} device
   * @param {string} engine what people read
   */
  constructor(transformer, device, engine) {
    this.transformer = transformer;
    this.device = device;
    this.engine = engine;
    this.failed = false;
    device.addEventListener("uncapturederror", (event) => {
      event.preventDefault(); // nobody need hear of it: WebAssembly takes over
      this.failed = true;
    });
    const { space, blocks, x } = transformer;
    const recorder = new Recorder();
    transformer.forward(recorder);
    const { STORAGE, UNIFORM, COPY_SRC, COPY_DST, MAP_READ } = GPUBufferUsage;
    this.numbers = device.createBuffer({ size: 4 * space.used, usage: STORAGE | COPY_SRC | COPY_DST });
    this.upload({ at: 0, count: space.used });
    const { table } = recorder;
    const commands = device.createBuffer({ size: table.byteLength, usage: UNIFORM | COPY_DST });
    device.queue.writeBuffer(commands, 0, table);

    const visibility = GPUShaderStage.COMPUTE;
    const layout = device.createBindGroupLayout({
      entries: [
        { binding: 0, visibility, buffer: { type: "storage" } },
        { binding: 1, visibility, buffer: { type: "uniform", hasDynamicOffset: true } },
      ],
    });
    this.bindings = device.createBindGroup({
      layout,
      entries: [
        { binding: 0, resource: { buffer: this.numbers } },
        { binding: 1, resource: { buffer: commands, size: 4 * FIELDS.length } },
      ],
    });
    const module = device.createShaderModule({ code: KERNELS });
    const pipelineLayout = device.createPipelineLayout({ bindGroupLayouts: [layout] });
    /** @type {Record<string, GPUComputePipeline>} */
    const pipelines = {};
    this.dispatches = recorder.commands.map(({ kernel, groups }) => {
      pipelines[kernel] ??= device.createComputePipeline({ layout: pipelineLayout, compute: { module, entryPoint: kernel } });
      return { pipeline: pipelines[kernel], groups };
    });

    /** @type {Range[]} what comes back: of each block what others read, which lies side by side, and what left the last */
    this.results = blocks.map(({ x: { at }, attention }) => {
      const last = rangeOf(attention[attention.length - 1]);
      return { at, count: last.at + last.count - at };
    });
    this.results.push(rangeOf(x));
    this.returned = device.createBuffer({ size: 4 * this.results.reduce((sum, { count }) => sum + count, 0), usage: MAP_READ | COPY_DST });
  }

  /**
   * Whether device and processor give the same numbers for a picture, to the bounds above.
   *
   * @param {Float32Array} pixels as for `run`
   */
  async agrees(pixels) {
    const expected = this.transformer.run(pixels), expectedMaps = this.attention();
    const actual = await this.run(pixels), maps = this.attention();
    /** @type {(one: ArrayLike<number>, other: ArrayLike<number>, bound: number) => boolean} */
    const alike = (one, other, bound) => Array.from(one).every((value, i) => Math.abs(value - other[i]) <= bound);
    return actual !== null && alike(actual, expected, PROBABILITY) && maps.every((map, i) => alike(map, expectedMaps[i], ATTENTION));
  }

  /** Every map of the last pass, copied. */
  attention() {
    const { blocks, space } = this.transformer;
    return blocks.flatMap(({ attention }) => attention.flatMap((map) => Array.from({ length: map.rows }, (_, row) => space.row(map, row).slice())));
  }

  /** @param {Range} range that the device gets as it is in the workspace */
  upload({ at, count }) {
    this.device.queue.writeBuffer(this.numbers, 4 * at, /** @type {Float32Array<ArrayBuffer>} */ (this.transformer.space.numbers), at, count);
  }

  /**
   * One pass, as VisionTransformer.run; null where the device failed, such as when it was lost.
   *
   * @param {Float32Array} pixels (channels, height, width), normalised
   */
  async run(pixels) {
    const { transformer, device, numbers, returned, results } = this;
    try {
      transformer.cut(pixels);
      this.upload(rangeOf(transformer.patches));
      const encoder = device.createCommandEncoder();
      const pass = encoder.beginComputePass();
      this.dispatches.forEach(({ pipeline, groups }, number) => {
        pass.setPipeline(pipeline);
        pass.setBindGroup(0, this.bindings, [DISTANCE * number]);
        pass.dispatchWorkgroups(...groups);
      });
      pass.end();
      let to = 0;
      for (const { at, count } of results) {
        encoder.copyBufferToBuffer(numbers, 4 * at, returned, 4 * to, 4 * count);
        to += count;
      }
      device.queue.submit([encoder.finish()]);
      await returned.mapAsync(GPUMapMode.READ);
      const output = new Float32Array(returned.getMappedRange());
      to = 0;
      for (const { at, count } of results) transformer.space.numbers.set(output.subarray(to, (to += count)), at);
      returned.unmap();
      return this.failed ? null : transformer.classify();
    } catch {
      return null;
    }
  }
}

/**
 * Where a matrix lies.
 *
 * @param {Matrix} matrix
 * @returns {Range}
 */
function rangeOf({ at, rows, stride }) {
  return { at, count: rows * stride };
}
