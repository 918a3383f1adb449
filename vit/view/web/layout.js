// What the viewer looks like on the page: where everything lies, controls, colour scale and readings.

const NEAREST = 5; // patches outlined
const LONGEST = 2.5; // sides of the patch grid that a panorama is cut to
const SHARES = ["residual", "discard", "mass"]; // fields of a selection that sliders set

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function percentage(share) {
  return `${100 * share}%`;
}

/** What to show along one side: the picture and the patches, or of a panorama a part around the patches. */
function extent(from, to, length, longest) {
  const first = Math.min(0, from), last = Math.max(length, to);
  if (last - first <= longest) return [first, last];
  const margin = Math.max(0, longest - (to - from)) / 2;
  return [Math.max(first, from - margin), Math.min(last, to + margin)];
}

class Page {
  constructor(parent) {
    this.root = parent.querySelector(".vit");
    const found = new Map(); // the page's own elements stay; asking for them costs nothing
    this.find = (selector) => {
      if (!found.has(selector)) found.set(selector, this.root.querySelector(selector));
      return found.get(selector);
    };
    this.over = this.find(".over");
    this.gridCanvas = this.find(".grid");
    this.readings = [...this.root.querySelectorAll(".readings > div")].map((e) => [...e.children]);
    this.near = Array.from({ length: NEAREST }, () => document.createElement("div"));
    for (const element of this.near) element.className = "near";
    this.find(".query").before(...this.near);
    this.tickValues = new Float64Array(12);
  }

  /** What depends on the payload alone: the picture, where the patches are, chips, labels. */
  layOut() {
    const { payload, mosaic } = this;
    const { picture, box, colormaps } = payload.header;
    const [left, top, right, bottom] = box;
    const [x0, x1] = extent(left, right, picture.width, LONGEST * (bottom - top));
    const [y0, y1] = extent(top, bottom, picture.height, LONGEST * (right - left));
    const width = x1 - x0, height = y1 - y0;
    const put = (element, l, t, r, b) =>
      Object.assign(element.style, {
        left: percentage((l - x0) / width),
        top: percentage((t - y0) / height),
        width: percentage((r - l) / width),
        height: percentage((b - t) / height),
      });
    this.find(".stage").style.setProperty("--aspect", width / height);
    const img = this.find(".picture");
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = URL.createObjectURL(new Blob([payload.picture], { type: picture.type }));
    img.src = this.url;
    img.classList.toggle("tiny", Math.max(picture.width, picture.height) <= 128);
    put(img, 0, 0, picture.width, picture.height);
    put(this.find(".box"), left, top, right, bottom);
    this.find(".lines").style.backgroundSize = `${100 / payload.cols}% ${100 / payload.rows}%`;

    const chips = this.find(".tokens");
    chips.replaceChildren(...payload.prefix.map((name, token) => this.chip(name, token)));
    chips.hidden = payload.prefix.length === 0;
    this.find("[data-value=similar]").hidden = !payload.features;
    this.find("[data-value=pool]").hidden = !payload.pool;
    for (const name of ["similar", "pool"]) this.find(`.keys .${name}`).hidden = this.find(`[data-value=${name}]`).hidden;
    this.chips = [...chips.children].map((chip) => ({ chip, swatch: chip.children[0], weight: chip.children[2] }));

    const patchAspect = ((right - left) / payload.cols) / ((bottom - top) / payload.rows);
    const frame = this.find(".maps");
    frame.style.setProperty("--maps", (mosaic.width * patchAspect) / mosaic.height);
    frame.style.setProperty("--tiles", mosaic.width / mosaic.tileWidth);
    // The numbers go below the shorter column; chips and legend take about a tenth of the width.
    const mapsAspect = (mosaic.width * patchAspect) / mosaic.height;
    this.find(".body").classList.toggle("low", height / width + 0.2 < 0.88 / mapsAspect);
    const label = (word, number) => {
      const span = document.createElement("span");
      span.append(document.createElement("b"), String(number));
      span.firstChild.textContent = `${word} `;
      return span;
    };
    const columns = this.find(".labels.columns"), rows = this.find(".labels.rows");
    columns.replaceChildren(...Array.from({ length: payload.heads }, (_, h) => label("Head", h + 1)));
    rows.replaceChildren(...Array.from({ length: payload.blocks }, (_, b) => label("Block", b + 1)));
    if (payload.pool) rows.append(Object.assign(document.createElement("span"), { textContent: "Pooling" }));
    [...columns.children].forEach((span, h) => {
      span.style.left = percentage(mosaic.left(h + 1) / mosaic.width);
      span.style.width = percentage(mosaic.tileWidth / mosaic.width);
    });
    [...rows.children].forEach((span, b) => {
      span.style.top = percentage(mosaic.above(b + 1) / mosaic.height);
      span.style.height = percentage(mosaic.tileHeight / mosaic.height);
    });
    this.find(".fusion.heads").style.width = percentage(mosaic.tileWidth / mosaic.width);
    this.find(".fusion.blocks").style.height = percentage(mosaic.tileHeight / mosaic.height);

    const select = this.find("[data-field=colormap]");
    select.replaceChildren(
      ...colormaps.map((name) => Object.assign(document.createElement("option"), { value: name, textContent: capital(name) })),
    );
    this.measure();
  }

  chip(name, token) {
    const chip = document.createElement("button");
    chip.type = "button";
    for (const tag of ["i", "span", "data"]) chip.append(document.createElement(tag));
    chip.children[1].textContent = chipName(name);
    chip.addEventListener("pointerenter", (event) => event.pointerType !== "touch" && this.point(token));
    chip.addEventListener("pointerleave", () => this.leave());
    chip.addEventListener("click", (event) => this.togglePin(token, event));
    return chip;
  }

  /** What depends on the size on screen. */
  measure() {
    if (!this.mosaic) return;
    const shown = this.gridCanvas.clientWidth;
    const tile = (shown * this.mosaic.tileWidth) / this.mosaic.width;
    this.find(".maps").classList.toggle("roomy", tile >= 46);
    this.find(".maps").classList.toggle("tight", tile < 34);
    this.gridCanvas.classList.toggle("shrunk", shown * devicePixelRatio < this.mosaic.width * 1.2);
  }

  /** Show the selection in every control. */
  reflect() {
    const { selection } = this;
    if (FUSIONS.includes(selection.block)) this.fuseBlocks = selection.block;
    if (FUSIONS.includes(selection.head)) this.fuseHeads = selection.head;
    this.find(".fusion.blocks select").value = this.fuseBlocks;
    this.find(".fusion.heads select").value = this.fuseHeads;
    for (const group of this.root.querySelectorAll(".switch"))
      for (const button of group.children)
        button.setAttribute("aria-pressed", String(selection[group.dataset.field] === button.dataset.value));
    for (const button of this.find("[data-field=direction]").children) button.disabled = !this.directed;
    const relevance = this.find("[data-value=relevance]");
    relevance.hidden = this.find(".keys .relevance").hidden = !this.method;
    write(relevance, this.method?.title ?? "");
    relevance.title = this.method ? `What speaks for “${this.method.target}”. Choose class and method above` : "";
    this.find(".readings > div").title =
      selection.view === "similar" ? "" : "Entropy of the row; its exponential is the effective number of tokens";
    this.find("[data-field=colormap]").value = selection.colormap;
    this.find("[data-field=opacity]").value = selection.opacity;
    this.find("[data-field=smooth]").checked = selection.smooth;
    this.find("[data-field=contour]").value = selection.contour;
    this.find(".mass").hidden = selection.contour !== "mass";
    this.reflectShares();
    for (const label of this.root.querySelectorAll("[data-setting]")) label.hidden = !this.settings.includes(label.dataset.setting);
    this.find("[data-field=fusion]").value = selection.fusion;
    Object.assign(this.find("[data-field=start_block]"), { value: selection.start_block + 1, max: this.payload.blocks });
    const colormap = this.payload.colormaps.get(selection.colormap);
    if (this.colormap !== colormap || !this.lut) {
      this.colormap = colormap;
      this.lut = pixelTable(colormap);
      this.veil = new Uint32Array(256);
    }
    this.veiled = "";
    this.find("[data-field=cover]").value = selection.cover;
    this.painted.token = -2; // colours or scale may differ: paint every map again
    this.cover();
  }

  /** Show what sliders are at, and say it beside them. */
  reflectShares() {
    for (const name of SHARES) {
      const slider = this.find(`[data-field=${name}]`);
      slider.value = this.selection[name];
      write(slider.nextElementSibling, `${Math.round(100 * this.selection[name])} %`);
    }
  }

  /** Draw the patches that are hidden from the model. */
  cover() {
    const { payload, selection } = this;
    const canvas = this.find(".covered");
    Object.assign(canvas, { width: payload.cols, height: payload.rows });
    const context = canvas.getContext("2d");
    context.fillStyle = "rgb(120 120 120 / 88%)";
    const told = !this.find(".painting").hidden || this.root.classList.contains("compact"); // of a picture without them
    for (const patch of told ? selection.hidden : []) context.fillRect(patch % payload.cols, Math.floor(patch / payload.cols), 1, 1);
    this.find(".unhide").hidden = this.find(".swap").hidden = selection.hidden.length === 0;
  }

  /**
   * The colours over the picture. By weight, those below the mean of all patches (0 to 255) leave it clear, and the
   * further above, the more they cover; a film covers all of it, more where colours are stronger.
   */
  fade(mean) {
    const { opacity, cover } = this.selection;
    const now = `${opacity} ${cover} ${mean}`;
    if (this.veiled === now) return;
    this.veiled = now;
    const least = opacity ** 2, most = opacity ** 0.5;
    for (let i = 0; i < 256; i++) {
      const above = Math.max(0, (i - mean) / Math.max(255 - mean, 1));
      const covered = cover === "film" ? least + ((most - least) * i) / 255 : Math.sqrt(opacity * above);
      this.veil[i] = (this.lut[i] & 0xffffff) | (Math.round(255 * covered) << 24);
    }
    const context = this.find(".ramp canvas").getContext("2d");
    const image = context.createImageData(256, 2); // in the maps, and on the picture
    const pixels = new Uint32Array(image.data.buffer);
    pixels.set(this.lut);
    pixels.set(this.veil, 256);
    context.putImageData(image, 0, 0);
  }

  outline(element, token) {
    const { split, rows, cols } = this.payload;
    const patch = token - split;
    element.hidden = patch < 0;
    if (patch < 0) return;
    Object.assign(element.style, {
      left: percentage((patch % cols) / cols),
      top: percentage(Math.floor(patch / cols) / rows),
      width: percentage(1 / cols),
      height: percentage(1 / rows),
    });
  }

  mark(element, cell) {
    element.hidden = !cell;
    if (element.classList.contains("selected")) {
      this.bold(".labels.rows", cell ? cell.r - 1 : -1);
      this.bold(".labels.columns", cell ? cell.c - 1 : -1);
    }
    if (!cell) return;
    const { mosaic } = this;
    Object.assign(element.style, {
      left: percentage(mosaic.left(cell.c) / mosaic.width),
      top: percentage(mosaic.above(cell.r) / mosaic.height),
      width: percentage(mosaic.tileWidth / mosaic.width),
      height: percentage(mosaic.tileHeight / mosaic.height),
    });
  }

  bold(selector, index) {
    const labels = this.find(selector);
    if (labels.__bold === index && labels.children[index]?.className !== "") return;
    for (const old of labels.querySelectorAll(".chosen")) old.className = "";
    if (labels.children[index]) labels.children[index].className = "chosen";
    labels.__bold = index;
  }

  color(value, low, top) {
    const i = 3 * Math.min(255, Math.max(0, Math.round((255 * (value - low)) / (top - low || 1))));
    return `rgb(${this.colormap[i]} ${this.colormap[i + 1]} ${this.colormap[i + 2]})`;
  }

  drawLegend(low, top, view, scale, mean) {
    const caret = this.find(".caret");
    const read = this.readValue;
    caret.hidden = Number.isNaN(read);
    if (!caret.hidden) caret.style.left = percentage(Math.min(1, Math.max(0, top > low ? (read - low) / (top - low) : 0)));
    const beyond = this.find(".beyond");
    beyond.hidden = !(this.most > top * 1.005);
    beyond.title = beyond.hidden ? "" : `Stronger patches, up to ${percent(this.most)}, have the last colour`;
    const now = `${low} ${top} ${view} ${scale} ${mean} ${this.shares(view)}`;
    if (this.painted.legend === now) return;
    this.painted.legend = now;
    const legend = this.find(".legend");
    const similar = view === "similar";
    legend.classList.toggle("cosines", similar);
    write(this.find(".unit.weights"), similar ? "cosine" : "weight");
    const { tokens } = this.payload;
    if (!similar)
      this.drawTicks(this.find(".times"), 0, top, tokens, (value) => (value >= 10 ? String(Math.round(value)) : String(+value.toFixed(3))));
    this.drawTicks(this.find(".ticks.weights"), low, top, similar ? 1 : 100, (value) =>
      similar ? String(+value.toPrecision(3)).replace("-", "−") : value ? `${+value.toPrecision(3)} %` : "0",
    );
    const clear = mean ? clearText(view, low + (mean / 255) * (top - low)) : "";
    const text = legendText(this.payload, view, scale, low, top, this.shares(view)) + clear;
    legend.title = text;
    legend.setAttribute("aria-label", `Colour scale from ${similar ? `${cosine(low)} to ${cosine(top)}` : `0 to ${percent(top)}`}. ${text}`);
  }

  drawTicks(row, low, top, unit, words) {
    const count = roundTicks(low * unit, top * unit, 5, this.tickValues);
    while (row.children.length < count) row.append(document.createElement("span"));
    for (let i = 0; i < row.children.length; i++) {
      const span = row.children[i];
      span.hidden = i >= count;
      if (span.hidden) continue;
      const share = (this.tickValues[i] / unit - low) / (top - low);
      span.style.left = percentage(share);
      span.className = share < 0.02 ? "start" : share > 0.97 ? "end" : "";
      write(span, words(this.tickValues[i]));
    }
  }

  drawChips(values, at, low, top, asked, view) {
    const { selection } = this;
    for (let token = 0; token < this.chips.length; token++) {
      const { chip, swatch, weight } = this.chips[token];
      const value = values[at + token];
      swatch.style.backgroundColor = this.color(value, low, top);
      write(weight, view === "similar" ? cosine(value) : percent(value));
      chip.classList.toggle("asked", token === asked);
      chip.setAttribute("aria-pressed", String(selection.pinned && selection.token === token));
    }
  }

  drawReadings(values, at, query, view, r, c) {
    const { payload, selection } = this;
    const { tokens, split } = payload;
    const pool = view === "pool";
    const to = selection.direction === "to" && !pool && view !== "relevance";
    const fused = view !== "rollout" && view !== "relevance" && ((r === 0 && this.fuseBlocks !== "mean") || (c === 0 && this.fuseHeads !== "mean"));
    let sum = 0, entropy = 0, prefix = 0, best = split;
    for (let i = 0; i < tokens; i++) {
      const value = values[at + i];
      sum += value;
      if (value > 0) entropy -= value * Math.log(value);
      if (i < split) prefix += value;
      else if (value > values[at + best]) best = i;
    }

    if (to) this.read(0, "Mean weight received", percent(sum / tokens), `${multiple(sum)} uniform`);
    else if (!(sum > 0)) this.read(0, "Spread", "–", "nothing speaks for it");
    else if (fused) this.read(0, "Spread", "–", "a maximum or minimum is no distribution");
    else {
      entropy = entropy / sum + Math.log(sum); // of the row made to sum to 1, which rounding missed by a little
      this.read(0, "Spread", `${effective(Math.exp(entropy))} of ${tokens} tokens`, `entropy ${(entropy / Math.log(tokens)).toFixed(2)} of uniform`);
    }

    const first = split ? chipName(payload.prefix[0]).toLowerCase() : "";
    if (!split) this.read(1, "Prefix tokens", "none", "in this model");
    else if (to) this.read(1, `From ${first}`, percent(values[at]), `${multiple(values[at] * tokens)} uniform`);
    else if (split === 1) this.read(1, `On ${first}`, percent(prefix), `${multiple(prefix * tokens)} uniform`);
    else this.read(1, `On ${split} prefix tokens`, percent(prefix), `${first} ${percent(values[at])}`);

    const strongest = values[at + best];
    if (strongest > 0) this.read(2, "Strongest patch", place(payload, best), `${percent(strongest)} · ${multiple(strongest * tokens)} uniform`);
    else this.read(2, "Strongest patch", "–", "every patch has 0");

    const held = selection.pinned || this.fixed || query < 0;
    const key = held ? this.readKey : query;
    this.readValue = held && key >= 0 ? values[at + key] : NaN;
    if (key < 0) return this.read(3, "Under the pointer", "–", "point at a patch");
    const weight = values[at + key];
    let stronger = 0;
    for (let i = 0; i < tokens; i++) if (values[at + i] > weight) stronger++;
    const name = key < split ? chipName(payload.prefix[key]) : `Patch (${place(payload, key)})`;
    this.read(
      3,
      held && key !== query ? name : to ? "From itself" : "On itself",
      `≈ ${percent(weight)}`, // maps come in steps, see payload.py
      `${multiple(weight * tokens)} uniform · ${ordinal(stronger + 1)} of ${tokens}`,
    );
  }

  /** What the cosines of a token say, in place of the readings of a map that shares out 100 %. */
  drawSimilarities(values, query) {
    const { payload, selection, nearest } = this;
    const { tokens, split } = payload;
    const key = selection.pinned ? this.readKey : -1;
    this.readValue = key >= 0 ? values[key] : NaN;
    let sum = 0, others = 0, above = 0;
    for (let i = split; i < tokens; i++)
      if (i !== query) {
        sum += values[i];
        others++;
        if (values[i] > this.readValue) above++;
      }
    const [best, next] = nearest;
    if (best < 0) {
      this.read(0, "Mean of other patches", "–", "there is no other");
      this.read(2, "Most similar patch", "–", "there is no other");
    } else {
      const [low, top] = this.span(values, query);
      const second = next < 0 ? "" : `, the next ${cosine(values[next])}`;
      this.read(0, "Mean of other patches", cosine(sum / others), `cosines from ${cosine(low)} to ${cosine(top)}`);
      this.read(2, "Most similar patch", place(payload, best), `cosine ${cosine(values[best])}${second}`);
    }
    if (!split) this.read(1, "Prefix tokens", "none", "in this model");
    else this.read(1, chipName(payload.prefix[0]), cosine(values[0]), query === 0 ? "itself" : "cosine");

    const todo = selection.pinned ? "point at a patch" : "click to pin, then point at others";
    if (key < 0) return this.read(3, "Under the pointer", "–", todo);
    const name = key < split ? chipName(payload.prefix[key]) : `Patch (${place(payload, key)})`;
    const rank = key < split ? "cosine" : `${ordinal(above + 1)} of ${others} other patches`;
    this.read(3, name, cosine(values[key]), key === query ? "itself" : rank);
  }

  read(index, label, value, detail) {
    const [dt, dd, small] = this.readings[index];
    write(dt, label);
    write(dd, value);
    write(small, detail);
  }
}
