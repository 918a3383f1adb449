// Generates a WebAssembly module for the forward pass's hot loop: a matrix product in tiles of 4 rows by 8 columns.
// WebAssembly SIMD multiplies four pairs of numbers per instruction, JavaScript one. No DOM access.
//
// Source: WebAssembly core specification 2.0, chapter 5, "Binary Format".

export const TILE_ROWS = 4; // rows of the left matrix per tile
export const TILE_COLS = 8; // columns of the right matrix per tile: two vectors of four

// Encoded instructions.
const LOOP = [0x03, 0x40], END = [0x0b], BR_IF = [0x0d, 0]; // jumps to the start of the innermost loop
const I32_ADD = [0x6a], I32_SUB = [0x6b], I32_MUL = [0x6c];
const F32X4_ADD = [0xfd, 0xe4, 0x01], F32X4_MUL = [0xfd, 0xe6, 0x01];
/** @type {(local: number) => number[]} */
const get = (local) => [0x20, local];
/** @type {(local: number) => number[]} */
const set = (local) => [0x21, local];
/** @type {(local: number) => number[]} */
const tee = (local) => [0x22, local];
/** @type {(value: number) => number[]} */
const i32 = (value) => [0x41, ...signed(value)];
/** @type {(offset: number) => number[]} v128.load; the alignment is 2^2 bytes */
const load = (offset) => [0xfd, 0x00, 2, ...unsigned(offset)];
/** @type {(offset: number) => number[]} v128.load32_splat */
const loadSplat = (offset) => [0xfd, 0x09, 2, ...unsigned(offset)];
/** @type {(offset: number) => number[]} */
const store = (offset) => [0xfd, 0x0b, 2, ...unsigned(offset)];
/** @type {(local: number, change: number[]) => number[]} */
const move = (local, change) => [...get(local), ...change, ...I32_ADD, ...set(local)];

/**
 * Encode an unsigned integer as LEB128.
 *
 * @param {number} value
 */
function unsigned(value) {
  const bytes = [];
  for (; value > 127; value >>>= 7) bytes.push((value & 127) | 128);
  return [...bytes, value];
}

/** Encode a signed integer as LEB128; bit 6 of the last byte is the sign. @param {number} value */
function signed(value) {
  const bytes = [];
  for (; value < -64 || value > 63; value >>= 7) bytes.push((value & 127) | 128);
  return [...bytes, value & 127];
}

/** Prefix bytes with their length. @param {number[]} bytes */
const counted = (bytes) => [...unsigned(bytes.length), ...bytes];

// Parameters of the function, in order. Addresses and strides are in bytes; counts are numbers.
const [A, A_STRIDE, W, BIAS, OUT, OUT_STRIDE, ROWS, INNER, PANELS] = [...Array(9).keys()];
// Integer locals: position in each row of the left matrix, position in the right one, and loop counters.
const LEFT = [9, 10, 11, 12], RIGHT = 13, A_ROW = 14, OUT_ROW = 15, ROWS_LEFT = 16, INNER_LEFT = 17;
// Vector locals: two sums per row of the tile, two vectors of the right matrix, and one splat of the left.
const SUMS = [18, 20, 22, 24], COLUMNS = [26, 27], NUMBER = 28;

/**
 * Return the code of out = a w + bias. A panel holds eight columns of w, row by row.
 *
 *     for each panel of w
 *       for every four rows of a
 *         sums = bias
 *         for each inner index: sums += column of a times row of the panel
 *         out = sums
 */
function body() {
  const tile = LEFT.flatMap((left, row) => [
    ...get(left), ...loadSplat(0), ...set(NUMBER), ...move(left, i32(4)),
    ...COLUMNS.flatMap((columns, half) => [
      ...get(SUMS[row] + half), ...get(NUMBER), ...get(columns), ...F32X4_MUL, ...F32X4_ADD, ...set(SUMS[row] + half),
    ]),
  ]);
  return [
    ...LOOP, // panels
      ...get(A), ...set(A_ROW), ...get(OUT), ...set(OUT_ROW), ...get(ROWS), ...set(ROWS_LEFT),
      ...LOOP, // rows, four at a time
        ...get(A_ROW), ...set(LEFT[0]),
        ...[1, 2, 3].flatMap((row) => [...get(LEFT[row - 1]), ...get(A_STRIDE), ...I32_ADD, ...set(LEFT[row])]),
        ...get(W), ...set(RIGHT), ...get(INNER), ...set(INNER_LEFT),
        ...SUMS.flatMap((sum) => [0, 1].flatMap((half) => [...get(BIAS), ...load(16 * half), ...set(sum + half)])),
        ...LOOP, // inner dimension
          ...COLUMNS.flatMap((columns, half) => [...get(RIGHT), ...load(16 * half), ...set(columns)]),
          ...tile,
          ...move(RIGHT, i32(4 * TILE_COLS)),
          ...get(INNER_LEFT), ...i32(1), ...I32_SUB, ...tee(INNER_LEFT), ...BR_IF,
        ...END,
        ...get(OUT_ROW), ...set(LEFT[0]), // reuse the local as the output address
        ...SUMS.flatMap((sum) => [
          ...[0, 1].flatMap((half) => [...get(LEFT[0]), ...get(sum + half), ...store(16 * half)]),
          ...move(LEFT[0], get(OUT_STRIDE)),
        ]),
        ...get(LEFT[0]), ...set(OUT_ROW),
        ...move(A_ROW, [...get(A_STRIDE), ...i32(TILE_ROWS), ...I32_MUL]),
        ...get(ROWS_LEFT), ...i32(TILE_ROWS), ...I32_SUB, ...tee(ROWS_LEFT), ...BR_IF,
      ...END,
      ...get(RIGHT), ...set(W), // panels are contiguous
      ...move(OUT, i32(4 * TILE_COLS)),
      ...move(BIAS, i32(4 * TILE_COLS)),
      ...get(PANELS), ...i32(1), ...I32_SUB, ...tee(PANELS), ...BR_IF,
    ...END,
    ...END,
  ];
}

/** Return the bytes of the module, which exports the function `product` and imports its memory. */
export function moduleBytes() {
  const I32 = 0x7f, V128 = 0x7b;
  /** @type {(id: number, entries: number[][]) => number[]} */
  const section = (id, entries) => [id, ...counted([...unsigned(entries.length), ...entries.flat()])];
  /** @type {(text: string) => number[]} */
  const name = (text) => counted([...new TextEncoder().encode(text)]);
  const locals = [2, 9, I32, 11, V128]; // two groups: nine integers, eleven vectors
  return new Uint8Array([
    0x00, 0x61, 0x73, 0x6d, 1, 0, 0, 0, // "\0asm", version 1
    ...section(1, [[0x60, ...counted(Array(9).fill(I32)), 0]]), // types: one function type
    ...section(2, [[...name("js"), ...name("memory"), 2, 0, 1]]), // imports: a memory of at least one page
    ...section(3, [[0]]), // functions: one, of type 0
    ...section(7, [[...name("product"), 0, 0]]), // exports
    ...section(10, [counted([...locals, ...body()])]), // code
  ]);
}
