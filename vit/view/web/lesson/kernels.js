// The operations of operations.js in WGSL, for WebGPU: each is one kernel on numbers that all lie in one array. No DOM here.

import { TILE_COLS } from "./machine_code.js";

export const SIDE = 8; // a workgroup is a square of threads, or as many in a row
export const TILE = 4; // rows and columns of a product that a thread computes
export const THREADS = SIDE * SIDE;

/** What a command says, in the order of its numbers: the last is a real one, all others are whole. */
export const FIELDS = /** @type {const} */ (["a", "a_stride", "b", "b_stride", "c", "out", "out_stride", "rows", "cols", "inner", "factor"]);

/**
 * Addresses and distances are in numbers, as in a workspace. Rows are y and columns are x of the threads.
 *
 * The error function is off by at most 1.5e-7, as much as float32 is near 1. Source: Abramowitz & Stegun 1964, 7.1.26.
 */
export const KERNELS = /* wgsl */ `
struct Command { ${FIELDS.map((name) => `${name}: ${name === "factor" ? "f32" : "u32"}`).join(", ")} }
@group(0) @binding(0) var<storage, read_write> numbers: array<f32>;
@group(0) @binding(1) var<uniform> command: Command;
var<workgroup> parts: array<f32, ${THREADS}>;

// out = a b + c, four rows and four columns to a thread; b lies in panels. Each sum is in the order of machine_code.js.
@compute @workgroup_size(${SIDE}, ${SIDE})
fn product(@builtin(global_invocation_id) id: vec3u) {
  let row = id.y * ${TILE};
  let col = id.x * ${TILE};
  if (row >= command.rows || col >= command.cols) { return; }
  let first = command.a + row * command.a_stride;
  let step = command.a_stride;
  var right = command.b + col / ${TILE_COLS} * command.inner * ${TILE_COLS} + col % ${TILE_COLS};
  let bias = four(command.c + col);
  var sums = mat4x4f(bias, bias, bias, bias); // a row each
  for (var left = first; left < first + command.inner; left++) {
    let b = four(right);
    sums += mat4x4f(numbers[left] * b, numbers[left + step] * b, numbers[left + 2 * step] * b, numbers[left + 3 * step] * b);
    right += ${TILE_COLS};
  }
  for (var r = 0u; r < min(${TILE}, command.rows - row); r++) {
    for (var c = 0u; c < min(${TILE}, command.cols - col); c++) {
      numbers[command.out + (row + r) * command.out_stride + col + c] = sums[r][c];
    }
  }
}

fn four(at: u32) -> vec4f {
  return vec4f(numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3]);
}

@compute @workgroup_size(${SIDE}, ${SIDE})
fn fill(@builtin(global_invocation_id) id: vec3u) {
  if (id.y >= command.rows || id.x >= command.cols) { return; }
  let panel = command.out + id.x / ${TILE_COLS} * command.rows * ${TILE_COLS};
  numbers[panel + id.y * ${TILE_COLS} + id.x % ${TILE_COLS}] = numbers[command.a + id.y * command.a_stride + id.x * command.b_stride];
}

@compute @workgroup_size(${SIDE}, ${SIDE})
fn add(@builtin(global_invocation_id) id: vec3u) {
  if (id.y >= command.rows || id.x >= command.cols) { return; }
  numbers[command.out + id.y * command.out_stride + id.x] =
    numbers[command.a + id.y * command.a_stride + id.x] + numbers[command.b + id.y * command.b_stride + id.x];
}

@compute @workgroup_size(${SIDE}, ${SIDE})
fn gelu(@builtin(global_invocation_id) id: vec3u) {
  if (id.y >= command.rows || id.x >= command.cols) { return; }
  let at = command.out + id.y * command.out_stride + id.x;
  let x = numbers[at];
  let z = abs(x) * 0.70710678;
  let t = 1 / (1 + 0.3275911 * z);
  let series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  let beyond = 0.5 * series * exp(-z * z); // of the bell curve, on the side where x is
  numbers[at] = x * select(beyond, 1 - beyond, x > 0);
}

// One number of all threads, which each of them gets: their sum, or the largest.
fn reduced(value: f32, thread: u32, sum: bool) -> f32 {
  parts[thread] = value;
  workgroupBarrier();
  var all = parts[0];
  for (var i = 1u; i < ${THREADS}; i++) { all = select(max(all, parts[i]), all + parts[i], sum); }
  workgroupBarrier(); // before the next one writes
  return all;
}

@compute @workgroup_size(${THREADS})
fn softmax(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let first = command.out + group.y * command.out_stride;
  let end = first + command.cols;
  var value = numbers[first];
  for (var i = first + thread; i < end; i += ${THREADS}) { value = max(value, numbers[i]); }
  let most = reduced(value, thread, false);
  value = 0;
  for (var i = first + thread; i < end; i += ${THREADS}) {
    numbers[i] = exp((numbers[i] - most) * command.factor);
    value += numbers[i];
  }
  let sum = reduced(value, thread, true);
  for (var i = first + thread; i < end; i += ${THREADS}) { numbers[i] /= sum; }
}

@compute @workgroup_size(${THREADS})
fn norm(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let first = command.a + group.y * command.a_stride;
  var value = 0.0;
  for (var i = thread; i < command.cols; i += ${THREADS}) { value += numbers[first + i]; }
  let mean = reduced(value, thread, true) / f32(command.cols);
  value = 0;
  for (var i = thread; i < command.cols; i += ${THREADS}) { value += (numbers[first + i] - mean) * (numbers[first + i] - mean); }
  let deviation = sqrt(reduced(value, thread, true) / f32(command.cols) + command.factor);
  for (var i = thread; i < command.cols; i += ${THREADS}) {
    numbers[command.out + group.y * command.out_stride + i] =
      (numbers[first + i] - mean) / deviation * numbers[command.b + i] + numbers[command.c + i];
  }
}
`;
