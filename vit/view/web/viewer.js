// What is shown: what Python says, viewers that move together, and every map that is computed and painted for that.

const STATS = 512; // draws remembered for benchmarks
const FRAME_BUDGET = 6; // ms of a frame that the maps of a large model may take
const QUICK_PRODUCTS = 16e6; // multiplications that all maps may take and still follow the pointer: about 15 ms
const REST = 100; // ms that the pointer rests before slower ones are computed
const ALONE = "This map is computed in the app";
const ROLLOUT = ["residual", "fusion", "discard"]; // settings that rollout knows

const groups = (globalThis.__vitGroups ??= new Map()); // name: Set of viewers that move together
const chosen = (globalThis.__vitSelections ??= new Map()); // name of a viewer: what it last showed, across mounts

class Viewer extends Page {
  constructor(parent) {
    super(parent);
    this.name = ""; // by which the page knows it, across mounts
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
    this.painted = { token: -2, top: -1, legend: "" };
    this.stats = { draw: new Float64Array(STATS), frame: new Float64Array(STATS), draws: 0, frames: 0, timeFrames: false };
    this.root.__vitStats = this.stats;
    this.root.__vitViewer = this;
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

  /** Whether all that was asked of it is painted, and told to Python. */
  get settled() {
    return !this.frame && !this.untold && !this.root.matches("[data-waiting], [data-busy]");
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
      const before = engine.done[r];
      ready = engine.need(r, c);
      if (engine.done[r] && !before) { // nobody else paints this row then
        this.paintRow(r);
        this.mosaic.show();
      }
      if (ready && own) top = this.strongest(values, at, -1);
    }
    this.ends = [low, top];
    this.most = ready && !shades ? this.strongest(values, at, view === "rollout" || view === "relevance" ? asked : -1) : 0;
    const over = [shades ?? values, at + payload.split, shades ? 1 : top];
    const mean = ready ? this.overlay.mean(...over) : 0;
    this.fade(mean);
    if (ready) this.overlay.paint(...over, this.veil, selection.smooth);
    else if (view === "rollout" || view === "relevance") this.overlay.clear();
    this.over.classList.toggle("stale", !ready);
    this.root.toggleAttribute("data-unready", !ready);
    this.find(".aside").hidden = view === "attention" || view === "pool";
    this.outlineStrongest(ready ? values : null, at + payload.split);

    this.outline(this.find(".query"), asked);
    this.outline(this.find(".key"), this.readKey === asked ? -1 : this.readKey);
    if (view === "similar" || !this.near[0].hidden)
      this.near.forEach((element, i) => this.outline(element, view === "similar" ? this.nearest[i] : -1));
    this.root.classList.toggle("pinned", selection.pinned);
    const mapped = selection.view === "attention" || selection.view === "pool"; // one of the grid's maps is selected
    this.mark(this.find(".mark.selected"), mapped ? this.cellOfSelection() : null);
    this.mark(this.find(".mark.previewed"), this.preview);
    const about = view === "relevance" ? asked : query;
    const set = view === selection.view ? settingsText(this.settings, selection) : "";
    write(this.find(".sentence"), sentence(payload, view, selection.direction, this.blockOf(r), this.headOf(c), about, this.method, set));
    const noteElement = this.find(".note");
    noteElement.hidden = !note;
    write(noteElement, note);
    this.drawProbe();
    if (ready) {
      if (view === "similar") this.drawSimilarities(values, query);
      else this.drawReadings(values, at, asked, view, r, c);
      this.drawChips(values, at, low, top, asked, view);
      this.drawLegend(low, top, view, selection.scale, selection.cover === "film" ? 0 : mean);
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
    const patch = token - payload.split;
    if (patch < 0) write(element, "Point at a patch to replace it.");
    else if (this.selection.hidden.includes(patch)) write(element, "This patch is hidden already.");
    else write(element, probeText(probe, patch, place(payload, token)));
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
}
