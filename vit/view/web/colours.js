// Colour lookup tables. No DOM access.

/**
 * Convert 256 colours (RGB bytes) to opaque pixels.
 *
 * @param {Uint8Array} colors
 */
function pixelTable(colors) {
  const table = new Uint32Array(256);
  for (let i = 0; i < 256; i++)
    table[i] = (255 << 24) | (colors[3 * i + 2] << 16) | (colors[3 * i + 1] << 8) | colors[3 * i];
  return table;
}

/** Colours of map values: opaque in the grid, partly transparent over the picture. */
export class Colours {
  constructor() {
    /** @type {Uint8Array} */
    this.colormap = new Uint8Array(0); // (256, 3)
    this.lut = new Uint32Array(256);
    this.veil = new Uint32Array(256);
    this.veiled = ""; // settings that the veil was computed with
    this.strongest = 1; // largest opacity of a film, 0 to 1
  }

  /** @param {Uint8Array} colormap */
  use(colormap) {
    if (this.colormap !== colormap) this.lut = pixelTable(colormap);
    this.colormap = colormap;
    this.veiled = "";
  }

  /**
   * Compute the colours over the picture. Cover "weight" leaves patches below the mean of all patches (0 to 255) clear,
   * and opacity grows above it; cover "film" covers the whole picture, with more opacity for stronger colours.
   *
   * @param {number} mean
   * @param {number} opacity
   * @param {string} cover "weight" or "film"
   * @returns true if the colours changed
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
   * Return a value's colour for CSS.
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
