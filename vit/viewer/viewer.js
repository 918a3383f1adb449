// The viewer itself: what the pointer and keys do, and what changes on the page. Nothing leaves the browser but
// choices: a click or a settled key.

const STATS = 512; // draws remembered for benchmarks
const FRAME_BUDGET = 6; // ms of a frame that the maps of a large model may take
const QUICK_PRODUCTS = 16e6; // multiplications that all maps may take and still follow the pointer: about 15 ms
const REST = 100; // ms that the pointer rests before slower ones are computed
const NEAREST = 5; // patches outlined
const LONGEST = 2.5; // sides of the patch grid that a panorama is cut to
const ALONE = "This map is computed in the app";
const ROLLOUT = ["residual", "fusion", "discard"]; // settings that rollout knows
const SHARES = ["residual", "discard", "mass"]; // fields of a selection that sliders set
const SETTLE = 300; // ms after the last key until Python hears of it

const viewers = new WeakMap(); // parentElement: Viewer
const groups = (globalThis.__vitGroups ??= new Map()); // name: Set of viewers that move together
const chosen = (globalThis.__vitSelections ??= new Map()); // name of a viewer: what it last showed, across mounts

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

class Viewer {
  constructor(parent) {
    this.name = ""; // by which the page knows it, across mounts
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
    this.payload = null;
    this.payloadId = null;
    this.revision = null;
    this.given = null; // map that Python computed
    this.method = null; // what the view "relevance" shows
    this.group = ""; // of viewers that move together
    this.ownView = false; // it keeps its view while the others of its group change theirs
    this.reach = { view: "", top: 0 }; // its map's strongest patch, where colours end there
    this.stroke = null; // while patches are hidden (true) or shown again (false) by dragging
    this.send = () => {};
    this.selection = null;
    this.hovered = -1; // token under the pointer or moved to by keys
    this.readKey = -1; // token whose weight is read
    this.preview = null; // {r, c} of the map under the pointer
    this.touching = false;
    this.frame = this.idle = this.resting = this.settling = this.speaking = 0;
    this.fuseBlocks = this.fuseHeads = "mean";
    this.tickValues = new Float64Array(12);
    this.painted = { token: -2, top: -1, legend: "" };
    this.stats = { draw: new Float64Array(STATS), frame: new Float64Array(STATS), draws: 0, frames: 0, timeFrames: false };
    this.root.__vitStats = this.stats;
    this.root.__vitViewer = this;
    this.listen();
    this.arrived = (event) => {
      if (event.detail === this.payloadId) this.load();
      else if (this.payload && event.detail === this.method?.chain) this.request();
    };
    globalThis.addEventListener(PAYLOAD_EVENT, this.arrived);
    this.resized = new ResizeObserver(() => this.measure());
    this.resized.observe(this.find(".mosaic"));
  }

  destroy() {
    this.join("");
    globalThis.removeEventListener(PAYLOAD_EVENT, this.arrived);
    this.resized.disconnect();
    cancelAnimationFrame(this.frame);
    cancelAnimationFrame(this.idle);
    clearTimeout(this.resting);
    clearTimeout(this.settling);
    clearTimeout(this.speaking);
    if (this.url) URL.revokeObjectURL(this.url);
  }

  // ---- what Python says -------------------------------------------------------------------------------------

  update(data, send) {
    this.send = send;
    this.name = data.name;
    this.given = data.given;
    this.alone = Boolean(data.alone); // nobody listens
    const before = JSON.stringify(this.method);
    this.method = data.method;
    const renamed = before !== JSON.stringify(this.method);
    this.ownView = data.ownView;
    this.probe = data.probe;
    this.join(data.group);
    this.root.classList.toggle("compact", data.compact);
    this.find(".painting").hidden = !data.paintable;
    const told = data.revision !== this.revision;
    if (told) {
      this.revision = data.revision;
      const known = chosen.get(this.name);
      const restored = known && known.revision === data.revision;
      this.selection = { ...(restored ? known.selection : data.seed) };
      this.sent = JSON.stringify(data.seed);
      this.home = this.selection.pinned ? 0 : this.selection.token;
      this.hovered = this.readKey = -1;
    }
    if (data.payload !== this.payloadId) {
      this.payloadId = data.payload;
      this.load();
    } else if (this.payload) {
      if (told || renamed) this.settle();
      this.cover();
      this.request();
    }
  }

  /** Take the payload if it is here; otherwise its arrival calls again. */
  load() {
    const payload = takePayload(this.payloadId, (bytes) => new Payload(bytes));
    this.root.toggleAttribute("data-waiting", !payload);
    if (!payload || payload === this.payload) return this.request();
    this.payload = payload;
    this.engine = new Engine(payload);
    this.mosaic = new Mosaic(this.gridCanvas, payload);
    this.overlay = new Overlay(this.over, payload);
    this.rollout = new Float32Array(payload.tokens);
    this.rolled = "";
    this.relevance = new Float32Array(payload.tokens);
    this.traced = "";
    this.similar = new Float32Array(payload.tokens);
    this.compared = -1; // token whose cosines these are
    this.shades = new Float32Array(payload.tokens);
    this.marked = new Uint8Array(payload.patches);
    this.find(".contour").setAttribute("viewBox", `0 0 ${payload.cols} ${payload.rows}`);
    this.nearest = new Int32Array(NEAREST);
    this.hovered = this.readKey = -1;
    this.preview = null;
    this.painted = { token: -2, top: -1, legend: "" };
    this.lut = null;
    this.layOut();
    this.settle();
    this.find(".waiting").hidden = true;
    this.find(".instrument").hidden = false;
    this.draw();
    for (const peer of this.peers) peer.repaint();
  }

  // ---- viewers that move together ---------------------------------------------------------------------------

  join(name) {
    if (name === this.group) return;
    groups.get(this.group)?.delete(this);
    if (name) groups.set(name, (groups.get(name) ?? new Set()).add(this));
    this.group = name;
  }

  /** The others of the group that have something to show. */
  get peers() {
    return [...(groups.get(this.group) ?? [])].filter((viewer) => viewer !== this && viewer.payload);
  }

  /** The same token in this viewer: by name, or by its place on a grid that may be finer. */
  counterpart(other, token) {
    const { split, rows, cols, prefix } = this.payload;
    if (token < 0) return token;
    if (token < other.split) return Math.max(0, prefix.indexOf(other.prefix[token]));
    const row = Math.floor((token - other.split) / other.cols), col = (token - other.split) % other.cols;
    return split + Math.floor(((row + 0.5) / other.rows) * rows) * cols + Math.floor(((col + 0.5) / other.cols) * cols);
  }

  /** What was pointed at or chosen in another viewer happens here too; Python hears of it from there. */
  follow(leader) {
    const at = (token) => this.counterpart(leader.payload, token);
    const { lines, heads } = this.payload;
    const { preview } = leader;
    const { view, hidden } = this.selection;
    const selection = { ...leader.selection, token: at(leader.selection.token), hidden, ...(this.ownView && { view }) };
    this.hovered = at(leader.hovered);
    this.readKey = at(leader.readKey);
    this.touching = leader.touching;
    this.preview = preview && preview.r <= lines && preview.c <= heads ? { ...preview } : null;
    if (JSON.stringify(selection) !== JSON.stringify(this.selection)) {
      this.selection = selection;
      chosen.set(this.name, { revision: this.revision, selection: { ...selection } });
      this.settle();
    }
    this.request();
  }

  /** Show what people just did, here and in the others of the group. */
  act(event) {
    this.request(event);
    for (const peer of this.peers) peer.follow(this);
  }

  repaint() {
    this.painted.token = -2;
    this.request();
  }

  /** The end of the colour scale that all blocks and heads share, and all viewers of the group. */
  sharedTop(token, direction) {
    let top = this.payload.top(token, direction);
    for (const peer of this.peers) top = Math.max(top, peer.payload.top(peer.counterpart(this.payload, token), direction));
    return top;
  }

  /** The strongest patch of this map and of all maps of the group that show the same view. */
  commonTop(view, top) {
    if (this.selection.scale === "own") return top;
    if (this.reach.view !== view || this.reach.top !== top) {
      this.reach = { view, top };
      for (const peer of this.peers) peer.request();
    }
    return this.peers.reduce((most, { reach }) => (reach.view === view ? Math.max(most, reach.top) : most), top);
  }

  /** Another map of the group is of the same kind, so both share a scale. */
  shares(view) {
    return this.peers.some(({ reach }) => reach.view === view);
  }

  /** Fit the selection to the payload, and the controls to the selection. */
  settle() {
    const { payload, selection } = this;
    const index = (value, count) =>
      FUSIONS.includes(value) ? value : Math.min(Math.max(Number.isInteger(value) ? value : count - 1, 0), count - 1);
    selection.block = index(selection.block, payload.blocks);
    selection.head = index(selection.head, payload.heads);
    if (!(Number.isInteger(selection.token) && selection.token >= 0 && selection.token < payload.tokens)) {
      selection.token = 0;
      selection.pinned = false;
    }
    if (this.home >= payload.tokens) this.home = 0;
    if ({ similar: !payload.features, pool: !payload.pool, relevance: !this.method }[selection.view]) selection.view = "attention";
    selection.hidden = (selection.hidden ?? []).filter((patch) => Number.isInteger(patch) && patch >= 0 && patch < payload.patches);
    selection.start_block = Math.min(selection.start_block, payload.blocks - 1);
    if (!payload.colormaps.has(selection.colormap)) selection.colormap = payload.header.colormaps[0];
    this.reflect();
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
      const context = this.find(".ramp canvas").getContext("2d");
      const image = context.createImageData(256, 1);
      new Uint32Array(image.data.buffer).set(this.lut);
      context.putImageData(image, 0, 0);
    }
    this.fade(selection.opacity);
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
    for (const patch of this.find(".painting").hidden ? [] : selection.hidden) context.fillRect(patch % payload.cols, Math.floor(patch / payload.cols), 1, 1);
    this.find(".unhide").hidden = selection.hidden.length === 0;
  }

  /** The colours over the picture: stronger attention covers more of it. All or nothing at 1 and 0. */
  fade(opacity) {
    const least = opacity ** 2, most = opacity ** 0.5;
    for (let i = 0; i < 256; i++)
      this.veil[i] = (this.lut[i] & 0xffffff) | (Math.round(255 * (least + ((most - least) * i) / 255)) << 24);
  }

  // ---- the page ---------------------------------------------------------------------------------------------

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

  // ---- what is shown ----------------------------------------------------------------------------------------

  /**
   * The query stays, wherever the pointer is: the pooling query is no token, and rollout of a large model comes from
   * Python.
   */
  get fixed() {
    const { view } = this.selection;
    return view === "pool" || (view === "rollout" && !this.payload.quick) || (view === "relevance" && !this.method.chain);
  }

  /** The view reads rows or columns; the others know no direction. */
  get directed() {
    const { view } = this.selection;
    return view === "attention" || view === "rollout" || (view === "relevance" && this.method.tokens);
  }

  /** The view to show when a token is asked about: the pooling query then gives way. */
  get viewOfTokens() {
    const { view } = this.selection;
    return view === "pool" || (view === "relevance" && !this.method.tokens) ? "attention" : view;
  }

  /** Settings that mean something to what is shown. */
  get settings() {
    const { view } = this.selection;
    return view === "rollout" ? ROLLOUT : view === "relevance" ? this.method.settings : [];
  }

  get query() {
    const { selection, hovered } = this;
    if (hovered >= 0 && !this.fixed && (this.touching || !selection.pinned)) return hovered;
    return selection.token;
  }

  /** The token that a map is about; -1 where it is about none: the pooling query's, or a class's. */
  about(view) {
    if (view === "pool") return -1;
    const { hovered, selection } = this;
    if (view !== "relevance" || (this.method.tokens && (selection.pinned || (hovered >= 0 && !this.fixed)))) return this.query;
    return -1;
  }

  get cell() {
    const { selection } = this;
    return (
      this.preview ?? {
        r: selection.view === "pool" ? this.payload.lines : FUSIONS.includes(selection.block) ? 0 : selection.block + 1,
        c: FUSIONS.includes(selection.head) ? 0 : selection.head + 1,
      }
    );
  }

  blockOf(r) {
    return r === 0 ? this.fuseBlocks : r - 1;
  }

  headOf(c) {
    return c === 0 ? this.fuseHeads : c - 1;
  }

  request(event) {
    if (event && this.stats.timeFrames) this.asked = event.timeStamp;
    if (!this.frame && this.payload)
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.draw();
      });
  }

  draw() {
    const began = performance.now();
    const { payload, selection, engine, stats } = this;
    const query = this.query;
    const { r, c } = this.cell;
    const view = r > payload.blocks ? "pool" : this.preview ? "attention" : selection.view;
    const own = selection.scale === "own";
    const asked = this.about(view);

    engine.ask(query, selection.direction, this.fuseBlocks, this.fuseHeads);
    if (payload.quick) {
      engine.computeAll();
      if (this.painted.token !== query) this.paintGrid();
    } else if (!engine.complete || this.painted.token !== query) this.continueLater(r);

    let values = engine.values, at = engine.offset(r, c), ready, note = "";
    let low = 0, top = view === "pool" ? payload.poolTop : this.sharedTop(query, selection.direction);
    if (view !== "rollout" && view !== "relevance") this.commonTop(view, 0);
    let shades = null; // shares of the way from low to top, where low is not 0
    if (view === "rollout") {
      values = this.rollout;
      at = 0;
      ready = this.computeRollout(query);
      top = ready ? this.commonTop(view, this.strongest(values, 0, query)) : 1;
      if (!ready) note = this.alone ? ALONE : selection.pinned ? "Computing the rollout …" : "Click a patch for its rollout";
    } else if (view === "relevance") {
      values = this.relevance;
      at = 0;
      ready = this.computeRelevance(asked);
      top = (ready && this.commonTop(view, this.strongest(values, 0, asked))) || 1;
      if (!ready) note = this.alone ? ALONE : `Computing ${this.method.title} …`;
    } else if (view === "similar") {
      values = this.similar;
      at = 0;
      ready = true;
      this.compare(query);
      if (own) [low, top] = this.span(values, query);
      if (!own || !(top > low)) [low, top] = [0, 1];
      shades = this.shade(values, low, top);
    } else {
      ready = engine.need(r, c);
      if (ready && own) top = this.strongest(values, at, -1);
    }
    this.most = ready && !shades ? this.strongest(values, at, view === "rollout" || view === "relevance" ? asked : -1) : 0;
    if (ready) this.overlay.paint(shades ?? values, at + payload.split, shades ? 1 : top, this.veil, selection.smooth);
    else if (view === "rollout" || view === "relevance") this.overlay.clear();
    this.over.classList.toggle("stale", !ready);
    this.outlineStrongest(ready ? values : null, at + payload.split);

    this.outline(this.find(".query"), asked);
    this.outline(this.find(".key"), this.readKey === asked ? -1 : this.readKey);
    if (view === "similar" || !this.near[0].hidden)
      this.near.forEach((element, i) => this.outline(element, view === "similar" ? this.nearest[i] : -1));
    this.root.classList.toggle("pinned", selection.pinned);
    const mapped = selection.view === "attention" || selection.view === "pool"; // one of the grid's maps is selected
    this.mark(this.find(".mark.selected"), mapped ? this.cellOfSelection() : null);
    this.mark(this.find(".mark.previewed"), this.preview);
    const said = sentence(payload, view, selection.direction, this.blockOf(r), this.headOf(c), view === "relevance" ? asked : query, this.method, view === selection.view ? settingsText(this.settings, selection) : "");
    write(this.find(".sentence"), said);
    const noteElement = this.find(".note");
    noteElement.hidden = !note;
    write(noteElement, note);
    this.drawProbe();
    if (ready) {
      if (view === "similar") this.drawSimilarities(values, query);
      else this.drawReadings(values, at, asked, view, r, c);
      this.drawChips(values, at, low, top, asked, view);
      this.drawLegend(low, top, view, selection.scale);
    }

    stats.draw[stats.draws++ % STATS] = performance.now() - began;
    if (stats.timeFrames && this.asked) this.timeFrame();
  }

  /** Say what becomes of the answer without the patch under the pointer. */
  drawProbe() {
    const { probe, payload, hovered, readKey } = this;
    const element = this.find(".probe");
    element.hidden = !probe || probe.after.length !== payload.patches;
    if (element.hidden) return;
    const token = readKey >= payload.split ? readKey : hovered;
    write(element, token < payload.split ? "Point at a patch to replace it." : probeText(probe, token - payload.split, place(payload, token)));
  }

  /** Draw the line around the strongest patches, if people asked for one. */
  outlineStrongest(values, at) {
    const { contour, mass } = this.selection;
    const { rows, cols } = this.payload;
    const path = contour === "none" || !values ? "" : border(outlined(values, at, contour, mass, this.marked), rows, cols);
    for (const line of this.find(".contour").children) if (line.getAttribute("d") !== path) line.setAttribute("d", path);
  }

  cellOfSelection() {
    const preview = this.preview;
    this.preview = null;
    const cell = this.cell;
    this.preview = preview;
    return cell;
  }

  timeFrame() {
    const asked = this.asked;
    this.asked = 0;
    const channel = new MessageChannel(); // its message runs after the frame that this draw belongs to
    channel.port1.onmessage = () => {
      this.stats.frame[this.stats.frames++ % STATS] = performance.now() - asked;
    };
    channel.port2.postMessage(0);
  }

  paintGrid() {
    for (let r = 0; r <= this.payload.lines; r++) this.paintRow(r);
    this.mosaic.show();
    this.painted.token = this.query;
  }

  paintRow(r) {
    const { payload, engine, mosaic, lut } = this;
    const own = this.selection.scale === "own";
    const shared = r > payload.blocks ? payload.poolTop : this.sharedTop(engine.token, engine.direction);
    for (let c = 0; c <= payload.heads; c++) {
      const at = engine.offset(r, c);
      const top = own ? this.strongest(engine.values, at, -1) : shared;
      mosaic.tile(r, c, engine.values, at + payload.split, top, lut);
    }
  }

  /** Compute and paint the maps of a large model over the next frames, the shown block first. */
  continueLater(r) {
    const { engine, payload } = this;
    if (this.painted.token === -2) {
      for (let row = 0; row <= payload.lines; row++) if (engine.done[row]) this.paintRow(row);
      this.mosaic.show();
    }
    this.painted.token = this.query;
    this.root.toggleAttribute("data-busy", !engine.complete);
    cancelAnimationFrame(this.idle);
    clearTimeout(this.resting);
    if (engine.complete) return;
    const work = () => {
      const began = performance.now();
      let painted = false;
      while (!engine.complete && performance.now() - began < FRAME_BUDGET) {
        const row = engine.step(r);
        if (row >= 0) this.paintRow(row);
        painted ||= row >= 0;
      }
      if (painted) this.mosaic.show();
      if (!engine.complete) return (this.idle = requestAnimationFrame(work));
      this.root.removeAttribute("data-busy");
      if (this.cell.r === 0) this.request(); // the summary on the picture had to wait for this
    };
    const products = payload.blocks * payload.heads * payload.tokens * payload.header.width;
    const begin = () => (this.idle = requestAnimationFrame(work));
    if (products < QUICK_PRODUCTS) begin();
    else this.resting = setTimeout(begin, REST);
  }

  /** True if this.rollout holds the rollout of the token. */
  computeRollout(token) {
    const { payload, given } = this;
    const direction = this.selection.direction;
    const { residual, fusion, discard } = this.selection;
    const wanted = `${token} ${direction} ${residual} ${fusion} ${discard}`;
    if (payload.quick) {
      if (this.rolled !== wanted) payload.rollout(token, direction, this.selection, this.rollout);
      this.rolled = wanted;
      return true;
    }
    if (!this.fits("rollout", token) || given.direction !== direction) return false;
    if (this.rolled !== given) this.rollout.set(given.values);
    this.rolled = given;
    return true;
  }

  /** Whether Python's map is of this view and token, and of the settings that are chosen. */
  fits(view, token) {
    const { given, payload, selection } = this;
    if (!given || given.view !== view || given.token !== token || given.values.length !== payload.tokens) return false;
    return this.settings.every((name) => given.settings[name] === selection[name]);
  }

  /** True if this.relevance holds the class's map for the token. */
  computeRelevance(token) {
    const { method, given } = this;
    const { direction, start_block } = this.selection;
    if (method.chain) {
      const chain = takePayload(method.chain, (bytes) => new Chain(bytes));
      if (!chain || chain.tokens !== this.payload.tokens) return false;
      const wanted = `${token} ${direction} ${start_block} ${method.chain}`;
      if (this.traced !== wanted) chain.trace(token, direction, start_block, this.relevance);
      this.traced = wanted;
      return true;
    }
    if (!this.fits("relevance", token) || (token >= 0 && given.direction !== direction)) return false;
    if (this.traced !== given) this.relevance.set(given.values);
    this.traced = given;
    return true;
  }

  /** Make this.similar the cosines of a token, and this.nearest the patches most like it, best first. */
  compare(token) {
    const { payload, similar, nearest } = this;
    if (this.compared === token) return;
    this.compared = token;
    payload.features.cosines(token, similar);
    nearest.fill(-1);
    for (let patch = payload.split; patch < payload.tokens; patch++) {
      if (patch === token) continue;
      let place = NEAREST;
      while (place > 0 && (nearest[place - 1] < 0 || similar[patch] > similar[nearest[place - 1]])) place--;
      if (place === NEAREST) continue;
      nearest.copyWithin(place + 1, place, NEAREST - 1);
      nearest[place] = patch;
    }
  }

  /** The least and the largest value of any patch but one. */
  span(values, except) {
    const { split, tokens } = this.payload;
    let low = Infinity, top = -Infinity;
    for (let token = split; token < tokens; token++)
      if (token !== except) {
        low = Math.min(low, values[token]);
        top = Math.max(top, values[token]);
      }
    return [low, top];
  }

  /** Values as shares of the way from low to top. */
  shade(values, low, top) {
    for (let i = 0; i < values.length; i++) this.shades[i] = Math.max(0, (values[i] - low) / (top - low));
    return this.shades;
  }

  /** The largest weight of any patch but one. */
  strongest(values, at, except) {
    const { split, tokens } = this.payload;
    let top = 0;
    for (let token = split; token < tokens; token++)
      if (values[at + token] > top && token !== except) top = values[at + token];
    return top;
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
    if (!cell) return;
    const { mosaic } = this;
    Object.assign(element.style, {
      left: percentage(mosaic.left(cell.c) / mosaic.width),
      top: percentage(mosaic.above(cell.r) / mosaic.height),
      width: percentage(mosaic.tileWidth / mosaic.width),
      height: percentage(mosaic.tileHeight / mosaic.height),
    });
    if (element.classList.contains("selected")) {
      this.bold(".labels.rows", cell.r - 1);
      this.bold(".labels.columns", cell.c - 1);
    }
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

  drawLegend(low, top, view, scale) {
    const caret = this.find(".caret");
    const read = this.readValue;
    caret.hidden = Number.isNaN(read);
    if (!caret.hidden) caret.style.left = percentage(Math.min(1, Math.max(0, top > low ? (read - low) / (top - low) : 0)));
    const beyond = this.find(".beyond");
    beyond.hidden = !(this.most > top * 1.005);
    beyond.title = beyond.hidden ? "" : `Stronger patches, up to ${percent(this.most)}, have the last colour`;
    const now = `${low} ${top} ${view} ${scale} ${this.shares(view)}`;
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
    const text = legendText(this.payload, view, scale, low, top, this.shares(view));
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
      percent(weight),
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

  // ---- what people do ---------------------------------------------------------------------------------------

  listen() {
    const { over, gridCanvas } = this;
    over.addEventListener("pointermove", (event) => {
      if (this.stroke !== null) return this.paintPatch(event);
      if (event.pointerType !== "touch" || this.touching) this.point(this.tokenAt(event), event);
    });
    over.addEventListener("pointerleave", () => !this.touching && this.leave());
    over.addEventListener("pointerdown", (event) => {
      if (this.painting && event.button === 0) return this.beginStroke(event);
      if (event.pointerType !== "touch") return;
      this.touching = true;
      this.tapped = this.tokenAt(event);
      this.point(this.tapped, event);
    });
    over.addEventListener("pointerup", (event) => {
      if (this.stroke !== null) return this.endStroke();
      if (!this.touching) return;
      this.touching = false;
      const token = this.tokenAt(event);
      this.hovered = -1;
      if (token === this.tapped) this.togglePin(token);
      else this.pin(token);
    });
    over.addEventListener("pointercancel", () => {
      if (this.stroke !== null) return this.endStroke();
      this.touching = false;
      this.leave();
    });
    over.addEventListener("click", (event) => {
      if (this.painting) return;
      if (event.pointerType !== "touch") this.togglePin(this.tokenAt(event), event);
    });
    over.addEventListener("keydown", (event) => this.key(event));
    this.root.addEventListener("keydown", (event) => event.key === "Escape" && this.release());
    over.addEventListener("blur", () => this.leave());

    gridCanvas.addEventListener("pointermove", (event) => {
      if (event.pointerType === "touch") return;
      const cell = this.cellAt(event);
      if (this.preview?.r === cell.r && this.preview?.c === cell.c) return;
      this.preview = cell;
      this.act(event);
    });
    gridCanvas.addEventListener("pointerleave", () => {
      this.preview = null;
      this.act();
    });
    gridCanvas.addEventListener("click", (event) => {
      const { r, c } = this.cellAt(event);
      this.choose(r, c);
      this.commit();
    });
    gridCanvas.addEventListener("keydown", (event) => this.gridKey(event));

    for (const [name, field] of [["blocks", "block"], ["heads", "head"]])
      this.find(`.fusion.${name} select`).addEventListener("change", (event) => {
        const pool = field === "head" && this.selection.view === "pool";
        this.change({ [field]: event.target.value, view: pool ? "pool" : "attention" });
      });
    for (const group of this.root.querySelectorAll(".switch"))
      group.addEventListener("click", (event) => {
        const value = event.target.closest("button")?.dataset.value;
        if (value) this.change({ [group.dataset.field]: value });
      });
    this.find("[data-field=colormap]").addEventListener("change", (event) => this.change({ colormap: event.target.value }));
    const opacity = this.find("[data-field=opacity]");
    opacity.addEventListener("input", () => {
      this.fade(Number(opacity.value));
      this.request();
    });
    this.find("[data-field=paint]").addEventListener("change", () => over.classList.toggle("painted", this.painting));
    this.find(".unhide").addEventListener("click", () => this.change({ hidden: [] }));
    opacity.addEventListener("change", () => this.change({ opacity: Number(opacity.value) }));
    this.find("[data-field=contour]").addEventListener("change", (event) => this.change({ contour: event.target.value }));
    for (const name of SHARES) {
      const slider = this.find(`[data-field=${name}]`);
      slider.addEventListener("input", () => {
        this.selection[name] = Number(slider.value);
        this.reflectShares();
        this.act();
      });
      slider.addEventListener("change", () => this.change({ [name]: Number(slider.value) }));
    }
    this.find("[data-field=fusion]").addEventListener("change", (event) => this.change({ fusion: event.target.value }));
    this.find("[data-field=start_block]").addEventListener("change", (event) => {
      const block = Math.round(Number(event.target.value)) || 1;
      this.change({ start_block: Math.min(Math.max(block, 1), this.payload.blocks) - 1 });
    });
    this.find("[data-field=smooth]").addEventListener("change", (event) => this.change({ smooth: event.target.checked }));
    this.find("[data-field=lines]").addEventListener("change", (event) => (this.find(".lines").hidden = !event.target.checked));
  }

  tokenAt(event) {
    const { rows, cols, split } = this.payload;
    const area = this.over.getBoundingClientRect();
    const part = (at, start, size, count) => Math.min(Math.max(Math.floor(((at - start) / size) * count), 0), count - 1);
    return split + part(event.clientY, area.top, area.height, rows) * cols + part(event.clientX, area.left, area.width, cols);
  }

  cellAt(event) {
    const area = this.gridCanvas.getBoundingClientRect();
    const x = ((event.clientX - area.left) / area.width) * this.mosaic.width;
    const y = ((event.clientY - area.top) / area.height) * this.mosaic.height;
    return { r: this.mosaic.row(y), c: this.mosaic.column(x) };
  }

  /** The pointer is on a token: it becomes the query or, when the query is held, the key that is read. */
  point(token, event) {
    const held = !this.touching && (this.selection.pinned || this.fixed);
    const field = held ? "readKey" : "hovered";
    if (this[field] === token) return;
    this[field] = token;
    this.act(event);
  }

  /** Dragging hides patches from the model, or shows them again. */
  get painting() {
    return !this.find(".painting").hidden && this.find("[data-field=paint]").checked;
  }

  beginStroke(event) {
    event.preventDefault();
    this.over.setPointerCapture(event.pointerId);
    this.stroke = !this.selection.hidden.includes(this.tokenAt(event) - this.payload.split);
    this.paintPatch(event);
  }

  paintPatch(event) {
    const { selection } = this;
    const patch = this.tokenAt(event) - this.payload.split;
    if (selection.hidden.includes(patch) === this.stroke) return;
    const others = selection.hidden.filter((other) => other !== patch);
    selection.hidden = (this.stroke ? [...others, patch] : others).sort((a, b) => a - b);
    this.cover();
  }

  endStroke() {
    this.stroke = null;
    this.commit();
  }

  leave() {
    if (this.hovered < 0 && this.readKey < 0) return;
    this.hovered = this.readKey = -1;
    this.act();
  }

  pin(token) {
    Object.assign(this.selection, { token, pinned: true, view: this.viewOfTokens });
    this.readKey = -1;
    this.commit();
  }

  release() {
    const { selection } = this;
    if (selection.view === "pool") return this.change({ view: "attention" });
    if (!selection.pinned && this.hovered < 0) return;
    const pinned = selection.pinned;
    Object.assign(selection, { token: pinned ? this.home : selection.token, pinned: false });
    this.hovered = this.readKey = -1;
    if (pinned) this.commit();
    else this.act();
  }

  /** A click, a tap or Enter on a token. */
  togglePin(token, event) {
    const { selection } = this;
    if (!selection.pinned || selection.token !== token || selection.view === "pool") return this.pin(token);
    this.release();
    if (event?.pointerType === "mouse" || event?.pointerType === "pen") this.hovered = token; // it is still there
  }

  choose(r, c) {
    const map = r > this.payload.blocks ? { view: "pool" } : { block: this.blockOf(r), view: "attention" };
    Object.assign(this.selection, map, { head: this.headOf(c) });
    this.reflect();
    this.request();
  }

  change(values) {
    Object.assign(this.selection, values);
    this.commit();
  }

  /** Paint what was chosen, then tell Python. */
  commit(after = 0) {
    this.reflect();
    this.act();
    this.speak();
    chosen.set(this.name, { revision: this.revision, selection: { ...this.selection } });
    clearTimeout(this.settling);
    const tell = () =>
      requestAnimationFrame(() =>
        setTimeout(() => {
          const now = JSON.stringify(this.selection);
          if (now !== this.sent) this.send({ ...this.selection, revision: this.revision });
          this.sent = now;
        }),
      );
    if (after) this.settling = setTimeout(tell, after);
    else tell();
  }

  /** Say the sentence to screen readers, once things are still. */
  speak() {
    clearTimeout(this.speaking);
    this.speaking = setTimeout(() => {
      const [label, place, detail] = this.readings[2];
      write(this.find(".live"), `${this.find(".sentence").textContent} ${label.textContent} ${place.textContent}, ${detail.textContent}.`);
    }, SETTLE);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { selection } = this;
    const { r, c } = this.cellOfSelection();
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const act = {
      ArrowLeft: () => this.move(0, -1),
      ArrowRight: () => this.move(0, 1),
      ArrowUp: () => this.move(-1, 0),
      ArrowDown: () => this.move(1, 0),
      PageUp: () => this.step(r - 1, c),
      PageDown: () => this.step(r + 1, c),
      Home: () => this.step(r, c - 1),
      End: () => this.step(r, c + 1),
      "[": () => this.step(r, c - 1),
      "]": () => this.step(r, c + 1),
      Enter: () => (selection.pinned ? this.release() : this.pin(this.query)),
      " ": () => (selection.pinned ? this.release() : this.pin(this.query)),
      Escape: () => this.release(),
      c: () => {
        this.hovered = -1;
        this.home = Math.max(0, this.payload.prefix.indexOf("cls"));
        this.change({ token: this.home, pinned: false, view: this.viewOfTokens });
      },
      d: () => this.directed && this.change({ direction: selection.direction === "to" ? "from" : "to" }),
      r: () => this.turn("rollout"),
      m: () => this.method && this.turn("relevance"),
      n: () => this.payload.features && this.turn("similar"),
      p: () => this.payload.pool && this.turn("pool"),
      s: () => this.change({ scale: selection.scale === "own" ? "shared" : "own" }),
    }[key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation(); // C and R mean something to Streamlit too
    act();
  }

  /** To a view, or back to attention. */
  turn(view) {
    this.change({ view: this.selection.view === view ? "attention" : view });
  }

  gridKey(event) {
    const { r, c } = this.cellOfSelection();
    const to = { ArrowLeft: [r, c - 1], ArrowRight: [r, c + 1], ArrowUp: [r - 1, c], ArrowDown: [r + 1, c] }[event.key];
    if (!to || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    this.step(...to);
  }

  /** Move the query by patches; from a prefix token it enters the picture in the middle. */
  move(down, right) {
    const { rows, cols, split } = this.payload;
    const patch = this.query - split;
    let row = rows >> 1, col = cols >> 1;
    if (patch >= 0) {
      row = Math.min(Math.max(Math.floor(patch / cols) + down, 0), rows - 1);
      col = Math.min(Math.max((patch % cols) + right, 0), cols - 1);
    }
    const token = split + row * cols + col;
    if (this.selection.pinned || this.fixed) {
      Object.assign(this.selection, { token, pinned: true, view: this.viewOfTokens });
      this.commit(SETTLE);
    } else {
      this.hovered = token;
      this.act();
      this.speak();
    }
  }

  step(r, c) {
    if (r < 0 || c < 0 || r > this.payload.lines || c > this.payload.heads) return;
    this.choose(r, c);
    this.commit(SETTLE);
  }
}

export default ({ data, parentElement, setStateValue }) => {
  let viewer = viewers.get(parentElement);
  if (!viewer) viewers.set(parentElement, (viewer = new Viewer(parentElement)));
  viewer.update(data, (selection) => setStateValue("selection", selection));
  return () => {
    viewer.destroy();
    viewers.delete(parentElement);
  };
};
