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

const BLUE = [33, 102, 172], PALE = [247, 247, 247], RED = [178, 24, 43];

/** Colours of signed maps over the picture (256, 3): from blue for -top over pale for 0 to red; `overlay.py` has the same. */
export const SIGNED_COLOURS = Uint8Array.from({ length: 768 }, (_, i) => {
  const away = (2 * Math.floor(i / 3)) / 255 - 1, end = away < 0 ? BLUE : RED;
  return Math.round(PALE[i % 3] + Math.abs(away) * (end[i % 3] - PALE[i % 3]));
});

const SIGNED_TABLE = pixelTable(SIGNED_COLOURS);

/** Colours of map values: opaque in the grid, partly transparent over the picture. */
export class Colours {
  constructor() {
    /** @type {Uint8Array} */
    this.colormap = new Uint8Array(0); // (256, 3)
    this.shown = this.colormap; // colours over the picture
    this.lut = new Uint32Array(256); // of the grid
    this.ramp = this.lut; // over the picture, opaque
    this.veil = new Uint32Array(256);
    this.veiled = ""; // settings that the veil was computed with
    this.strongest = 1; // largest opacity of a film, 0 to 1
  }

  /** @param {Uint8Array} colormap */
  use(colormap) {
    if (this.colormap !== colormap) this.lut = pixelTable(colormap);
    this.colormap = this.shown = colormap;
    this.veiled = "";
  }

  /**
   * Compute the colours over the picture. Cover "weight" leaves patches below the mean of all patches (0 to 255) clear,
   * and opacity grows above it; cover "film" covers the whole picture, with more opacity for stronger colours. Opacity
   * of a signed map grows from the middle to both ends; with cover "weight" it alone tells red from pale.
   *
   * @param {number} mean
   * @param {number} opacity
   * @param {string} cover "weight" or "film"
   * @param {boolean} signed
   * @returns true if the colours changed
   */
  fade(mean, opacity, cover, signed) {
    const veil = `${opacity} ${cover} ${mean} ${signed}`;
    if (this.veiled === veil) return false;
    this.veiled = veil;
    this.shown = signed ? SIGNED_COLOURS : this.colormap;
    this.ramp = signed ? SIGNED_TABLE : this.lut;
    const least = opacity ** 2, most = opacity ** 0.5;
    this.strongest = most;
    for (let i = 0; i < 256; i++) {
      const level = signed ? Math.abs(2 * i - 255) : i;
      const above = Math.max(0, (level - mean) / Math.max(255 - mean, 1));
      const covered = cover === "film" ? least + ((most - least) * level) / 255 : Math.sqrt(opacity * above);
      const colour = signed && cover === "weight" ? this.ramp[i < 128 ? 0 : 255] : this.ramp[i];
      this.veil[i] = (colour & 0xffffff) | (Math.round(255 * covered) << 24);
    }
    return true;
  }

  /**
   * Return a value's colour over the picture for CSS.
   *
   * @param {number} value
   * @param {number} low
   * @param {number} top
   */
  css(value, low, top) {
    const i = 3 * Math.min(255, Math.max(0, Math.round((255 * (value - low)) / (top - low || 1))));
    return `rgb(${this.shown[i]} ${this.shown[i + 1]} ${this.shown[i + 2]})`;
  }
}
