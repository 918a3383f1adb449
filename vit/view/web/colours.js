// The colours of numbers. No DOM here.

/**
 * 256 colours (RGB bytes) as opaque pixels.
 *
 * @param {Uint8Array} colors
 */
function pixelTable(colors) {
  const table = new Uint32Array(256);
  for (let i = 0; i < 256; i++)
    table[i] = (255 << 24) | (colors[3 * i + 2] << 16) | (colors[3 * i + 1] << 8) | colors[3 * i];
  return table;
}

/** The colours of numbers: opaque in the grid, and over the picture. */
export class Colours {
  constructor() {
    /** @type {Uint8Array} */
    this.colormap = new Uint8Array(0); // (256, 3)
    this.lut = new Uint32Array(256);
    this.veil = new Uint32Array(256);
    this.veiled = ""; // what the veil was made for
    this.strongest = 1; // how much a film covers at most, 0 to 1
  }

  /** @param {Uint8Array} colormap */
  use(colormap) {
    if (this.colormap !== colormap) this.lut = pixelTable(colormap);
    this.colormap = colormap;
    this.veiled = "";
  }

  /**
   * Make the colours over the picture. By weight, those below the mean of all patches (0 to 255) leave it clear, and
   * the further above, the more they cover; a film covers all of it, more where colours are stronger.
   *
   * @param {number} mean
   * @param {number} opacity
   * @param {string} cover "weight" or "film"
   * @returns whether they are others than before
   */
  fade(mean, opacity, cover) {
    const veil = `${opacity} ${cover} ${mean}`;
    if (this.veiled === veil) return false;
    this.veiled = veil;
    const least = opacity ** 2, most = opacity ** 0.5;
    this.strongest = most;
    for (let i = 0; i < 256; i++) {
      const above = Math.max(0, (i - mean) / Math.max(255 - mean, 1));
      const covered = cover === "film" ? least + ((most - least) * i) / 255 : Math.sqrt(opacity * above);
      this.veil[i] = (this.lut[i] & 0xffffff) | (Math.round(255 * covered) << 24);
    }
    return true;
  }

  /**
   * A value's colour, for CSS.
   *
   * @param {number} value
   * @param {number} low
   * @param {number} top
   */
  css(value, low, top) {
    const i = 3 * Math.min(255, Math.max(0, Math.round((255 * (value - low)) / (top - low || 1))));
    return `rgb(${this.colormap[i]} ${this.colormap[i + 1]} ${this.colormap[i + 2]})`;
  }
}
