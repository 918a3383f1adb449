// The one hot loop of the forward pass as machine code: a product of matrices, four rows by eight columns at a time.
// JavaScript multiplies one pair of numbers at a time; WebAssembly's vectors multiply four. No DOM here.
//
// Source: WebAssembly core specification 2.0, chapter 5, "Binary Format".

export const TILE_ROWS = 4; // rows of the left matrix at once
export const TILE_COLS = 8; // columns of the right matrix at once: two vectors of four

// Instructions, by their bytes.
const LOOP = [0x03, 0x40], END = [0x0b], BR_IF = [0x0d, 0]; // back to the start of the innermost loop
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
/** @type {(offset: number) => number[]} four numbers, from an address that is a multiple of 4 */
const load = (offset) => [0xfd, 0x00, 2, ...unsigned(offset)];
/** @type {(offset: number) => number[]} one number, four times */
const loadSplat = (offset) => [0xfd, 0x09, 2, ...unsigned(offset)];
/** @type {(offset: number) => number[]} */
const store = (offset) => [0xfd, 0x0b, 2, ...unsigned(offset)];
/** @type {(local: number, change: number[]) => number[]} */
const move = (local, change) => [...get(local), ...change, ...I32_ADD, ...set(local)];

/**
 * A number of any size, seven bits to a byte.
 *
 * @param {number} value
 */
function unsigned(value) {
  const bytes = [];
  for (; value > 127; value >>>= 7) bytes.push((value & 127) | 128);
  return [...bytes, value];
}

/** @param {number} value of either sign; bit 6 of the last byte is the sign */
function signed(value) {
  const bytes = [];
  for (; value < -64 || value > 63; value >>= 7) bytes.push((value & 127) | 128);
  return [...bytes, value & 127];
}

/** @param {number[]} bytes with their number before them */
const counted = (bytes) => [...unsigned(bytes.length), ...bytes];

// What the function is called with, in this order: addresses and distances in bytes, counts in numbers.
const [A, A_STRIDE, W, BIAS, OUT, OUT_STRIDE, ROWS, INNER, PANELS] = [...Array(9).keys()];
// Its own variables: where it is in the left matrix (a row each), where in the right one, and what is left to do.
const LEFT = [9, 10, 11, 12], RIGHT = 13, A_ROW = 14, OUT_ROW = 15, ROWS_LEFT = 16, INNER_LEFT = 17;
// Vectors: the sums of the tile, two for each of its rows; the two of the right matrix; the one number of the left.
const SUMS = [18, 20, 22, 24], COLUMNS = [26, 27], NUMBER = 28;

/**
 * out = a w + bias, for rows of a times panels of w. A panel is eight columns, row after row.
 *
 *     for each panel of w
 *       for each four rows of a
 *         sums = bias
 *         for each number along both: sums += its column of a times its row of the panel
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
        ...LOOP, // along the rows of a and the columns of w
          ...COLUMNS.flatMap((columns, half) => [...get(RIGHT), ...load(16 * half), ...set(columns)]),
          ...tile,
          ...move(RIGHT, i32(4 * TILE_COLS)),
          ...get(INNER_LEFT), ...i32(1), ...I32_SUB, ...tee(INNER_LEFT), ...BR_IF,
        ...END,
        ...get(OUT_ROW), ...set(LEFT[0]), // no longer needed for the left matrix
        ...SUMS.flatMap((sum) => [
          ...[0, 1].flatMap((half) => [...get(LEFT[0]), ...get(sum + half), ...store(16 * half)]),
          ...move(LEFT[0], get(OUT_STRIDE)),
        ]),
        ...get(LEFT[0]), ...set(OUT_ROW),
        ...move(A_ROW, [...get(A_STRIDE), ...i32(TILE_ROWS), ...I32_MUL]),
        ...get(ROWS_LEFT), ...i32(TILE_ROWS), ...I32_SUB, ...tee(ROWS_LEFT), ...BR_IF,
      ...END,
      ...get(RIGHT), ...set(W), // the next panel begins where this one ended
      ...move(OUT, i32(4 * TILE_COLS)),
      ...move(BIAS, i32(4 * TILE_COLS)),
      ...get(PANELS), ...i32(1), ...I32_SUB, ...tee(PANELS), ...BR_IF,
    ...END,
    ...END,
  ];
}

/** The module: one function, `product`, on an imported memory. */
export function moduleBytes() {
  const I32 = 0x7f, V128 = 0x7b;
  /** @type {(id: number, entries: number[][]) => number[]} */
  const section = (id, entries) => [id, ...counted([...unsigned(entries.length), ...entries.flat()])];
  /** @type {(text: string) => number[]} */
  const name = (text) => counted([...new TextEncoder().encode(text)]);
  const locals = [2, 9, I32, 11, V128]; // two kinds: nine whole numbers, eleven vectors
  return new Uint8Array([
    0x00, 0x61, 0x73, 0x6d, 1, 0, 0, 0, // "\0asm", version 1
    ...section(1, [[0x60, ...counted(Array(9).fill(I32)), 0]]), // the type of the function
    ...section(2, [[...name("js"), ...name("memory"), 2, 0, 1]]), // imports: a memory of a page or more
    ...section(3, [[0]]), // functions: one, of type 0
    ...section(7, [[...name("product"), 0, 0]]), // exports
    ...section(10, [counted([...locals, ...body()])]), // code
  ]);
}
