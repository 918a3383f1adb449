// Puts the viewer together: what Python says, its parts, and what is drawn when.

import { Mosaic } from "./canvas.js";
import { Chips } from "./chips.js";
import { Colours } from "./colours.js";
import { reflect } from "./controls.js";
import { draw } from "./drawing.js";
import { Engine } from "./engine.js";
import { Masks } from "./faithfulness.js";
import { Grid } from "./grid.js";
import { Group } from "./group.js";
import { listen, listenToChips, SETTLE } from "./input.js";
import { measure, offer, placeMaps } from "./layout.js";
import { Judge } from "./judge.js";
import { Legend } from "./legend.js";
import { Outbox } from "./outbox.js";
import { Page, write } from "./page.js";
import { Features, Payload } from "./payload.js";
import { HEADER_EVENT, PAYLOAD_EVENT, headerOf, takeNamed, takePayload } from "./payload_registry.js";
import { Picture } from "./picture.js";
import { PictureMap } from "./picture_map.js";
import { Readings } from "./readings.js";
import { reserve } from "./reserve.js";
import { State } from "./state.js";
import { Stats } from "./stats.js";

/** @import { Effect, ComputedMap, Message, Mount, Occlusion, Selection } from "./types" */

/** @type {Map<string, { revision: number | null, selection: Selection }>} */
const chosen = (globalThis.__vitSelections ??= new Map()); // name of a viewer: what it last showed, across mounts

/** @type {any} */
const missing = null; // until a payload is there

/** One viewer on a page. What belongs to a payload is there once `payload` is. */
export class Viewer {
  /** @param {HTMLElement} parent */
  constructor(parent) {
    this.page = new Page(parent);
    this.root = this.page.root;
    this.state = new State();
    this.group = new Group(this);
    this.colours = new Colours();
    this.legend = new Legend(this.page);
    this.readings = new Readings(this.page);
    this.outbox = new Outbox();
    this.stats = this.root.__vitStats = new Stats();
    this.root.__vitViewer = this;
    this.name = ""; // by which the page knows it, across mounts
    this.payloadId = "";
    /** @type {number | null} */
    this.revision = null;
    /** @type {ComputedMap | null} */
    this.computed = null; // map that Python computed
    /** @type {Occlusion | null} */
    this.occlusion = null;
    this.model = ""; // by which features of two pictures can be compared
    this.masksName = "";
    /** @type {Masks | null} */
    this.masks = null; // by which maps are judged
    this.featuresId = "";
    /** @type {Features | null} */
    this.sentFeatures = null; // after another block than the payload's, or with colours
    this.judge = new Judge(this);
    this.alone = false; // nobody listens
    this.ownView = false; // it keeps its view while the others of its group change theirs
    this.frame = this.speaking = 0;
    /** @type {Payload} */
    this.payload = missing;
    /** @type {Engine} */
    this.engine = missing;
    /** @type {Mosaic} */
    this.mosaic = missing;
    /** @type {PictureMap} */
    this.map = missing;
    /** @type {Picture} */
    this.picture = missing;
    /** @type {Chips} */
    this.chips = missing;
    /** @type {Grid} */
    this.grid = missing;
    this.arrived = (/** @type {Event} */ event) => this.arrive(/** @type {CustomEvent<string>} */ (event).detail);
    globalThis.addEventListener(PAYLOAD_EVENT, this.arrived);
    this.announced = () => this.reserve();
    globalThis.addEventListener(HEADER_EVENT, this.announced);
    this.resized = new ResizeObserver(() => this.mosaic && measure(this.page, this.mosaic));
    this.resized.observe(this.page.find(".mosaic"));
    listen(this);
  }

  /** Let go of everything outside of the viewer's own elements. */
  destroy() {
    this.group.join("");
    globalThis.removeEventListener(PAYLOAD_EVENT, this.arrived);
    globalThis.removeEventListener(HEADER_EVENT, this.announced);
    this.resized.disconnect();
    cancelAnimationFrame(this.frame);
    clearTimeout(this.speaking);
    this.outbox.stop();
    this.judge.stop();
    this.grid?.stop();
    this.picture?.destroy();
  }

  // What tests and benchmarks ask most.

  get selection() {
    return this.state.selection;
  }

  get hovered() {
    return this.state.hovered;
  }

  get query() {
    return this.state.query;
  }

  get cell() {
    return this.state.cell;
  }

  /** Features after the block that is selected, with colours where a view has some; null until they are here. */
  get features() {
    const { payload, sentFeatures } = this;
    const { after_block, view } = this.selection;
    if (sentFeatures?.block === after_block && sentFeatures.tokens === payload.tokens) return sentFeatures;
    return after_block === payload.blocks - 1 && view !== "components" ? payload.features : null;
  }

  /** Whether all that was asked of it is painted, and told to Python. */
  get settled() {
    return !this.frame && !this.outbox.pending && !this.root.matches("[data-waiting], [data-busy]");
  }

  // ---- what Python says -------------------------------------------------------------------------------------

  /**
   * @param {Message} message
   * @param {(selection: unknown) => void} send
   */
  update(message, send) {
    this.outbox.send = send;
    this.name = message.name;
    this.computed = message.computed;
    this.occlusion = message.occlusion;
    this.model = message.model ?? "";
    this.useMasks(message.masks ?? "");
    const readable = typeof message.features === "string";
    const renamed = this.state.readable !== readable || JSON.stringify(this.state.method) !== JSON.stringify(message.method);
    this.state.readable = readable;
    this.useFeatures(message.features ?? "");
    this.alone = Boolean(message.alone);
    this.ownView = Boolean(message.ownView);
    this.group.join(message.group);
    this.root.classList.toggle("compact", message.compact);
    this.page.find(".painting").hidden = !message.paintable;
    this.state.method = message.method;
    const revised = message.revision !== this.revision;
    if (revised) this.begin(message);
    if (message.payload !== this.payloadId) {
      this.payloadId = message.payload;
      this.load();
    } else if (this.payload) {
      if (revised || renamed) this.settle();
      this.picture.cover(this.selection.hidden);
      this.request();
    }
  }

  /**
   * Show what Python wants, or what people chose since.
   *
   * @param {Message} message
   */
  begin({ revision, seed }) {
    const remembered = chosen.get(this.name);
    this.revision = revision;
    this.state.begin(remembered?.revision === revision ? remembered.selection : seed);
    this.outbox.sent = JSON.stringify(seed);
  }

  /** @param {string} id of a payload that came */
  arrive(id) {
    if (id === this.payloadId) this.load();
    else if (this.payload && id === this.state.method?.chain) this.request();
    else if (this.takeMasks() || (id === this.featuresId && this.takeFeatures())) this.request();
  }

  /**
   * Compare by these features; those of another picture, or in another basis, are no use until they come.
   *
   * @param {string} id "" for those of the payload
   */
  useFeatures(id) {
    if (id !== this.featuresId) this.sentFeatures = null;
    this.featuresId = id;
    this.takeFeatures();
  }

  /** True if there are features of the id that Python gave. */
  takeFeatures() {
    const features = this.featuresId ? takePayload(this.featuresId, Features.read) : null;
    if (features) this.sentFeatures = features;
    return features !== null;
  }

  /**
   * Judge maps by what masks of this name say; those that came last stay until more of them come.
   *
   * @param {string} name
   */
  useMasks(name) {
    if (name !== this.masksName) this.masks = null;
    this.masksName = name;
    this.takeMasks();
  }

  /** True if there are masks, or more of them, that were not here before. */
  takeMasks() {
    const masks = this.masksName ? takeNamed(this.masksName, (bytes) => new Masks(bytes)) : null;
    if (!masks || masks === this.masks) return false;
    this.masks = masks;
    return true;
  }

  /** Take the payload if it is here; otherwise its arrival calls again. */
  load() {
    const payload = takePayload(this.payloadId, (bytes) => new Payload(bytes));
    this.root.toggleAttribute("data-waiting", !payload);
    if (!payload) this.reserve();
    if (!payload || payload === this.payload) return this.request();
    this.root.removeAttribute("data-reserved");
    this.show(payload);
    this.page.find(".waiting").hidden = true;
    this.page.find(".instrument").hidden = false;
    this.draw();
    for (const peer of this.group.peers) peer.repaint();
  }

  /** Make room for the first payload, as soon as what it will be is known. */
  reserve() {
    const header = headerOf(this.payloadId);
    if (header && !this.payload) reserve(this, header);
  }

  /**
   * Turn to a payload.
   *
   * @param {Payload} payload
   */
  show(payload) {
    const { page } = this;
    this.grid?.stop();
    this.picture?.destroy();
    this.payload = payload;
    this.engine = new Engine(payload);
    this.mosaic = new Mosaic(page.gridCanvas, payload);
    this.map = new PictureMap(payload);
    this.picture = new Picture(page, payload);
    this.chips = new Chips(page, payload);
    this.grid = new Grid(this);
    this.legend.drawn = "";
    listenToChips(this);
    placeMaps(page, payload, this.mosaic);
    offer(page, payload);
    measure(page, this.mosaic);
    this.state.turnTo(payload);
    this.settle();
  }

  /** Fit the selection to the payload, and the controls to the selection. */
  settle() {
    this.state.settle();
    this.reflect();
  }

  /** Show the selection in every control, and every map anew. */
  reflect() {
    const { state, selection } = this;
    state.keepFusions();
    reflect(this.page, state);
    this.colours.use(/** @type {Uint8Array} */ (this.payload.colormaps.get(selection.colormap)));
    this.grid.repaint();
    this.picture.cover(selection.hidden);
  }

  // ---- what people do ---------------------------------------------------------------------------------------

  /**
   * Show what came of an act, here and in the others of the group, and tell Python of a choice.
   *
   * @param {Effect} effect
   * @param {Event} [event] that it answers
   * @param {number} [after] the choice may be another one within this time [ms]
   */
  apply(effect, event, after = 0) {
    if (!effect) return;
    this.group.leader = null;
    if (effect === "chosen") this.reflect();
    this.request(event);
    for (const peer of this.group.peers) peer.follow(this);
    if (effect !== "chosen") return;
    this.speak();
    this.remember();
    this.outbox.post(() => ({ selection: this.selection, revision: this.revision }), after);
  }

  /** @param {Partial<Selection>} values */
  change(values) {
    this.apply(this.state.change(values));
  }

  /** @param {Viewer} leader in which people did something */
  follow(leader) {
    this.group.leader = leader;
    if (this.state.follow(leader.state, this.ownView)) {
      this.remember();
      this.settle();
    }
    this.request();
  }

  /** What is chosen outlives the elements that show it. */
  remember() {
    chosen.set(this.name, { revision: this.revision, selection: { ...this.selection } });
  }

  /** Say the sentence to screen readers, once things are still. */
  speak() {
    clearTimeout(this.speaking);
    this.speaking = setTimeout(() => {
      write(this.page.find(".live"), `${this.page.find(".sentence").textContent} ${this.readings.spoken}`);
    }, SETTLE);
  }

  // ---- what is drawn ----------------------------------------------------------------------------------------

  /**
   * Draw in the next frame.
   *
   * @param {Event} [event] that asks for it
   */
  request(event) {
    this.stats.ask(event);
    if (!this.frame && this.payload)
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.draw();
      });
  }

  repaint() {
    this.grid.repaint();
    this.request();
  }

  /** Draw everything. */
  draw() {
    const began = performance.now();
    draw(this);
    this.stats.drew(began);
  }
}

/** @type {WeakMap<HTMLElement, Viewer>} */
const viewers = new WeakMap();

/**
 * Show what Python says in a parent's viewer; gives what takes it away.
 *
 * @param {Pick<Mount, "data" | "parentElement" | "setStateValue">} mount
 */
export function mount({ data, parentElement, setStateValue }) {
  let viewer = viewers.get(parentElement);
  if (!viewer) viewers.set(parentElement, (viewer = new Viewer(parentElement)));
  viewer.update(data, (selection) => setStateValue("selection", selection));
  return () => {
    viewer.destroy();
    viewers.delete(parentElement);
  };
}
