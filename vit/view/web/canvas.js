// Paints maps on canvases. Buffers are allocated once per payload; painting allocates nothing.

/** @import { PayloadLayout } from "./payload.js" */

/**
 * Return the 2D context of a canvas.
 *
 * @param {HTMLCanvasElement} canvas
 */
export function contextOf(canvas) {
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
}

/**
 * All maps on one canvas with a few pixels per patch, which CSS scales up. Row and column 0 are the summaries; the
 * pooling query, if any, is the row after the blocks.
 */
export class Mosaic {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {PayloadLayout} payload
   */
  constructor(canvas, payload) {
    this.payload = payload;
    const { rows, cols } = payload;
    this.zoom = Math.max(1, Math.ceil(12 / Math.max(rows, cols))); // tiles of 12 px or more, beside gaps of 1 px
    this.tileWidth = cols * this.zoom;
    this.tileHeight = rows * this.zoom;
    this.gap = Math.max(1, Math.round(Math.max(this.tileWidth, this.tileHeight) / 14));
    this.break = 3 * this.gap; // between the summaries, the blocks and the pooling query
    this.width = this.left(payload.heads) + this.tileWidth;
    this.height = this.above(payload.lines) + this.tileHeight;
    canvas.width = this.width;
    canvas.height = this.height;
    this.context = contextOf(canvas);
    this.image = this.context.createImageData(this.width, this.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  /** @param {number} c a column of the grid */
  left(c) {
    return c === 0 ? 0 : this.tileWidth + this.break + (c - 1) * (this.tileWidth + this.gap);
  }

  /** @param {number} r a row of the grid */
  above(r) {
    if (r === 0) return 0;
    const pool = r > this.payload.blocks ? this.break - this.gap : 0;
    return this.tileHeight + this.break + (r - 1) * (this.tileHeight + this.gap) + pool;
  }

  /**
   * Return the column at pixel x of the mosaic. A gap belongs to the map before it.
   *
   * @param {number} x
   */
  column(x) {
    if (x < this.tileWidth + this.break / 2) return 0;
    const c = 1 + Math.floor((x - this.tileWidth - this.break) / (this.tileWidth + this.gap));
    return Math.min(Math.max(c, 1), this.payload.heads);
  }

  /**
   * Return the row at pixel y of the mosaic.
   *
   * @param {number} y
   */
  row(y) {
    if (y < this.tileHeight + this.break / 2) return 0;
    const { blocks, lines } = this.payload;
    if (lines > blocks && y >= this.above(lines) - this.break / 2) return lines;
    const r = 1 + Math.floor((y - this.tileHeight - this.break) / (this.tileHeight + this.gap));
    return Math.min(Math.max(r, 1), blocks);
  }

  /**
   * Paint one map.
   *
   * @param {number} r
   * @param {number} c
   * @param {Float32Array} values
   * @param {number} at index of the first patch in values
   * @param {number} top value of the last colour
   * @param {Uint32Array} colors
   */
  tile(r, c, values, at, top, colors) {
    const { rows, cols } = this.payload;
    const { zoom, width, pixels } = this;
    const scale = top > 0 ? 255 / top : 0;
    let corner = this.above(r) * width + this.left(c);
    for (let y = 0; y < rows; y++, corner += zoom * width)
      for (let x = 0; x < cols; x++) {
        const level = values[at++] * scale;
        const color = colors[level >= 255 ? 255 : (level + 0.5) | 0];
        if (zoom === 1) pixels[corner + x] = color;
        else
          for (let v = 0, to = corner + x * zoom; v < zoom; v++, to += width) pixels.fill(color, to, to + zoom);
      }
  }

  /** Copy the painted pixels to the canvas. */
  show() {
    this.context.putImageData(this.image, 0, 0);
  }
}

/** The map over the picture: one pixel per patch, or interpolated between patch centres. */
export class Overlay {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {PayloadLayout} payload
   */
  constructor(canvas, payload) {
    this.canvas = canvas;
    this.context = contextOf(canvas);
    this.payload = payload;
    const { rows, cols } = payload;
    const zoom = Math.max(1, Math.min(16, Math.floor(224 / Math.max(rows, cols))));
    this.plain = this.image(cols, rows);
    this.fine = this.image(cols * zoom, rows * zoom);
    this.across = this.steps(cols, zoom);
    this.down = this.steps(rows, zoom);
    this.line = new Float32Array(cols * zoom * 2);
  }

  /**
   * @param {number} width
   * @param {number} height
   */
  image(width, height) {
    const image = this.context.createImageData(width, height);
    return { image, width, height, pixels: new Uint32Array(image.data.buffer) };
  }

  /**
   * Return, for each fine pixel along one side, the patch before it and the weight of the patch after it.
   *
   * @param {number} count
   * @param {number} zoom
   */
  steps(count, zoom) {
    const before = new Int32Array(count * zoom);
    const weight = new Float32Array(count * zoom);
    for (let i = 0; i < count * zoom; i++) {
      const at = Math.min(Math.max((i + 0.5) / zoom - 0.5, 0), count - 1);
      before[i] = Math.min(Math.floor(at), Math.max(0, count - 2));
      weight[i] = at - before[i];
    }
    return { before, weight };
  }

  /**
   * Return the mean colour index of the absolute values of all patches, 0 to 255.
   *
   * @param {Float32Array} values
   * @param {number} at index of the first patch in values
   * @param {number} top value of the last colour
   */
  mean(values, at, top) {
    const scale = top > 0 ? 255 / top : 0;
    const count = this.payload.patches;
    let sum = 0;
    for (let i = at; i < at + count; i++) {
      const level = Math.abs(values[i]) * scale;
      sum += level >= 255 ? 255 : (level + 0.5) | 0;
    }
    return Math.floor(sum / count + 0.5);
  }

  /**
   * Paint a map.
   *
   * @param {Float32Array} values
   * @param {number} at index of the first patch in values
   * @param {number} top value of the last colour
   * @param {Uint32Array} colors
   * @param {boolean} smooth
   */
  paint(values, at, top, colors, smooth) {
    const target = smooth ? this.fine : this.plain;
    const scale = top > 0 ? 255 / top : 0;
    if (smooth) this.interpolate(values, at, scale, colors);
    else
      for (let i = 0; i < target.pixels.length; i++) {
        const level = values[at + i] * scale;
        target.pixels[i] = colors[level >= 255 ? 255 : (level + 0.5) | 0];
      }
    this.show(target);
  }

  /**
   * Paint each patch in a given colour.
   *
   * @param {Uint8Array} colours (P, 3)
   * @param {number} opacity
   */
  paintColours(colours, opacity) {
    const { pixels } = this.plain;
    const alpha = Math.round(255 * opacity) << 24;
    for (let i = 0, at = 0; i < pixels.length; i++, at += 3)
      pixels[i] = alpha | (colours[at + 2] << 16) | (colours[at + 1] << 8) | colours[at];
    this.show(this.plain);
  }

  /**
   * Copy a painted image to the canvas.
   *
   * @param {{ image: ImageData, width: number, height: number }} target
   */
  show({ image, width, height }) {
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    this.context.putImageData(image, 0, 0);
  }

  /** Clear the canvas. */
  clear() {
    this.context.clearRect(0, 0, this.canvas.width, this.canvas.height);
  }

  /**
   * Paint bilinearly between patch centres, one row of patches at a time.
   *
   * @param {Float32Array} values
   * @param {number} at
   * @param {number} scale
   * @param {Uint32Array} colors
   */
  interpolate(values, at, scale, colors) {
    const { down, line } = this;
    const { width, height, pixels } = this.fine;
    let stretched = -1; // patch row that `line` holds, stretched, together with the next row
    for (let y = 0, to = 0; y < height; y++) {
      const row = down.before[y];
      if (row !== stretched) this.stretch(values, at + row * this.payload.cols, scale);
      stretched = row;
      const lower = down.weight[y];
      for (let x = 0; x < width; x++, to++) {
        const level = line[x] + lower * (line[width + x] - line[x]);
        pixels[to] = colors[level >= 255 ? 255 : (level + 0.5) | 0];
      }
    }
  }

  /**
   * Interpolate a row of patches, and the next row, horizontally into `line`.
   *
   * @param {Float32Array} values
   * @param {number} at index of the row's first patch in values
   * @param {number} scale
   */
  stretch(values, at, scale) {
    const { rows, cols } = this.payload;
    const { across, line } = this;
    const { width } = this.fine;
    const nextRow = rows > 1 ? cols : 0;
    const nextCol = cols > 1 ? 1 : 0;
    for (let x = 0; x < width; x++) {
      const from = at + across.before[x];
      const w = across.weight[x] * scale;
      const v = scale - w;
      line[x] = v * values[from] + w * values[from + nextCol];
      line[width + x] = v * values[from + nextRow] + w * values[from + nextRow + nextCol];
    }
  }
}
