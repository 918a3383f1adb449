// Numbers to pixels. Buffers are made once per payload; painting allocates nothing.

/** 256 colours (RGB bytes) as opaque pixels. */
function pixelTable(colors) {
  const table = new Uint32Array(256);
  for (let i = 0; i < 256; i++)
    table[i] = (255 << 24) | (colors[3 * i + 2] << 16) | (colors[3 * i + 1] << 8) | colors[3 * i];
  return table;
}

/**
 * All maps in one canvas of a few pixels per patch: row and column 0 are the summaries, a row after the blocks is the
 * pooling query's. CSS scales it up.
 */
class Mosaic {
  constructor(canvas, payload) {
    this.payload = payload;
    const { rows, cols } = payload;
    this.zoom = Math.max(1, Math.ceil(12 / Math.max(rows, cols))); // so that a gap is thin beside a small grid
    this.tileWidth = cols * this.zoom;
    this.tileHeight = rows * this.zoom;
    this.gap = Math.max(1, Math.round(Math.max(this.tileWidth, this.tileHeight) / 14));
    this.break = 3 * this.gap; // between the summaries, the blocks and the pooling query
    this.width = this.left(payload.heads) + this.tileWidth;
    this.height = this.above(payload.lines) + this.tileHeight;
    canvas.width = this.width;
    canvas.height = this.height;
    this.context = canvas.getContext("2d");
    this.image = this.context.createImageData(this.width, this.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  left(c) {
    return c === 0 ? 0 : this.tileWidth + this.break + (c - 1) * (this.tileWidth + this.gap);
  }

  above(r) {
    if (r === 0) return 0;
    const pool = r > this.payload.blocks ? this.break - this.gap : 0;
    return this.tileHeight + this.break + (r - 1) * (this.tileHeight + this.gap) + pool;
  }

  /** The column at x pixels of the mosaic; a gap belongs to the map before it. */
  column(x) {
    if (x < this.tileWidth + this.break / 2) return 0;
    const c = 1 + Math.floor((x - this.tileWidth - this.break) / (this.tileWidth + this.gap));
    return Math.min(Math.max(c, 1), this.payload.heads);
  }

  row(y) {
    if (y < this.tileHeight + this.break / 2) return 0;
    const { blocks, lines } = this.payload;
    if (lines > blocks && y >= this.above(lines) - this.break / 2) return lines;
    const r = 1 + Math.floor((y - this.tileHeight - this.break) / (this.tileHeight + this.gap));
    return Math.min(Math.max(r, 1), blocks);
  }

  /** One map: patches of values from `at` on, `top` is the last colour. */
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

  show() {
    this.context.putImageData(this.image, 0, 0);
  }
}

/** The patches to outline, as 1 in out (P): the fewest that hold a share of the mass, or Otsu's stronger group. */
function outlined(values, at, kind, mass, out) {
  const count = out.length;
  const order = Uint32Array.from({ length: count }, (_, patch) => patch).sort((a, b) => values[at + b] - values[at + a]);
  let sum = 0;
  for (let i = 0; i < count; i++) sum += kind === "mass" ? Math.max(0, values[at + i]) : values[at + i];
  let last = 0, best = 0; // of the order, how many; and how far apart the groups are
  for (let i = 0, held = 0; i < count; i++) {
    const value = values[at + order[i]];
    if (kind === "mass") {
      if (!(held < mass * sum * (1 - 1e-12)) || !(value > 0)) break;
      last = i + 1;
      held += value;
    } else {
      held += value;
      const n = i + 1;
      if (n === count || !(values[at + order[n]] < value)) continue; // equal numbers stay together
      const apart = n * (count - n) * (held / n - (sum - held) / (count - n)) ** 2;
      if (apart > best) [best, last] = [apart, n];
    }
  }
  out.fill(0);
  for (let i = 0; i < last; i++) out[order[i]] = 1;
  return out;
}

/** The border around marked patches, as a path on a plane of one unit per patch. */
function border(marked, rows, cols) {
  const at = (row, col) => row >= 0 && row < rows && col >= 0 && col < cols && marked[row * cols + col] === 1;
  let path = "";
  for (let row = 0; row <= rows; row++)
    for (let col = 0; col <= cols; col++) {
      if (at(row, col) !== at(row - 1, col)) path += `M${col} ${row}h1`;
      if (at(row, col) !== at(row, col - 1)) path += `M${col} ${row}v1`;
    }
  return path;
}

/** The map over the picture: a pixel per patch, or values interpolated between patch centres. */
class Overlay {
  constructor(canvas, payload) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.payload = payload;
    const { rows, cols } = payload;
    const zoom = Math.max(1, Math.min(16, Math.floor(224 / Math.max(rows, cols))));
    this.plain = this.image(cols, rows);
    this.fine = this.image(cols * zoom, rows * zoom);
    this.across = this.steps(cols, zoom);
    this.down = this.steps(rows, zoom);
    this.line = new Float32Array(cols * zoom * 2);
  }

  image(width, height) {
    const image = this.context.createImageData(width, height);
    return { image, width, height, pixels: new Uint32Array(image.data.buffer) };
  }

  /** For each fine pixel along one side: the patch before it and the weight of the patch after. */
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

  /** Mean colour of all patches, 0 to 255. */
  mean(values, at, top) {
    const scale = top > 0 ? 255 / top : 0;
    const count = this.payload.patches;
    let sum = 0;
    for (let i = at; i < at + count; i++) {
      const level = values[i] * scale;
      sum += level >= 255 ? 255 : level > 0 ? (level + 0.5) | 0 : 0;
    }
    return Math.floor(sum / count + 0.5);
  }

  paint(values, at, top, colors, smooth) {
    const target = smooth ? this.fine : this.plain;
    const scale = top > 0 ? 255 / top : 0;
    if (smooth) this.interpolate(values, at, scale, colors);
    else
      for (let i = 0; i < target.pixels.length; i++) {
        const level = values[at + i] * scale;
        target.pixels[i] = colors[level >= 255 ? 255 : (level + 0.5) | 0];
      }
    if (this.canvas.width !== target.width || this.canvas.height !== target.height) {
      this.canvas.width = target.width;
      this.canvas.height = target.height;
    }
    this.context.putImageData(target.image, 0, 0);
  }

  clear() {
    this.context.clearRect(0, 0, this.canvas.width, this.canvas.height);
  }

  interpolate(values, at, scale, colors) {
    const { rows, cols } = this.payload;
    const { across, down, line } = this;
    const { width, height, pixels } = this.fine;
    const nextRow = rows > 1 ? cols : 0;
    const nextCol = cols > 1 ? 1 : 0;
    let stretched = -1; // the patch row whose stretched self and successor are in line
    for (let y = 0, to = 0; y < height; y++) {
      const row = down.before[y];
      if (row !== stretched) {
        for (let x = 0; x < width; x++) {
          const from = at + row * cols + across.before[x];
          const w = across.weight[x] * scale;
          const v = scale - w;
          line[x] = v * values[from] + w * values[from + nextCol];
          line[width + x] = v * values[from + nextRow] + w * values[from + nextRow + nextCol];
        }
        stretched = row;
      }
      const lower = down.weight[y];
      for (let x = 0; x < width; x++, to++) {
        const level = line[x] + lower * (line[width + x] - line[x]);
        pixels[to] = colors[level >= 255 ? 255 : (level + 0.5) | 0];
      }
    }
  }
}
