// The viewer: handles messages from Python, connects its parts and schedules drawing.

import { showAnswers } from "./answers.js";
import { Mosaic } from "./canvas.js";
import { Chips } from "./chips.js";
import { Colours } from "./colours.js";
import { updateControls } from "./controls.js";
import { draw } from "./drawing.js";
import { Engine } from "./engine.js";
import { Masks } from "./faithfulness.js";
import { Grid } from "./grid.js";
import { Group } from "./group.js";
import { listen, listenToChips, SETTLE } from "./pointer_and_keys.js";
import { updateSize, showAvailable, placeMaps } from "./layout.js";
import { FaithfulnessBox } from "./faithfulness_box.js";
import { Legend } from "./legend.js";
import { Outbox } from "./outbox.js";
import { Page, setText } from "./page.js";
import { Features, Payload } from "./payload.js";
import { HEADER_EVENT, PAYLOAD_EVENT, headerOf, findPayloadByName, findPayload, idOf } from "./payload_registry.js";
import { Picture } from "./picture.js";
import { PictureMap } from "./picture_map.js";
import { Readings } from "./readings.js";
import { reserve } from "./reserve.js";
import { State } from "./state.js";
import { Stats } from "./stats.js";

/** @import { Ablation, Effect, ComputedMap, Message, Mount, Occlusion, Selection } from "./types" */

/** @type {Map<string, { revision: number | null, selection: Selection }>} */
const lastSelections = (globalThis.__vitSelections ??= new Map()); // by the viewer's name; survives unmounting

/** @type {any} */
const unset = null; // until a payload has loaded

/** One viewer on a page. Its payload-specific parts are null until `payload` is set. */
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
    this.name = ""; // stable across mounts
    this.payloadId = "";
    /** @type {number | null} */
    this.revision = null;
    /** @type {ComputedMap | null} */
    this.computed = null; // map from Python
    /** @type {Occlusion | null} */
    this.occlusion = null;
    /** @type {Ablation | null} */
    this.ablation = null;
    this.model = ""; // features of two pictures can be compared if this is equal
    this.masksName = "";
    /** @type {Masks | null} */
    this.masks = null; // masks that maps are judged by
    this.featuresId = "";
    /** @type {Features | null} */
    this.sentFeatures = null; // features after another block than the payload's, or with component colours
    this.faithfulnessBox = new FaithfulnessBox(this);
    this.alone = false; // no server or kernel is connected
    this.ownView = false; // keeps its view when the group's view changes
    this.pressedBy = ""; // kind of the pointer that was pressed last
    this.frame = this.announceTimer = 0;
    /** @type {Payload} */
    this.payload = unset;
    /** @type {Engine} */
    this.engine = unset;
    /** @type {Mosaic} */
    this.mosaic = unset;
    /** @type {PictureMap} */
    this.map = unset;
    /** @type {Picture} */
    this.picture = unset;
    /** @type {Chips} */
    this.chips = unset;
    /** @type {Grid} */
    this.grid = unset;
    this.arrived = (/** @type {Event} */ event) => this.payloadArrived(/** @type {CustomEvent<string>} */ (event).detail);
    globalThis.addEventListener(PAYLOAD_EVENT, this.arrived);
    this.announced = () => this.reserve();
    globalThis.addEventListener(HEADER_EVENT, this.announced);
    this.resized = new ResizeObserver(() => this.mosaic && updateSize(this.page, this.mosaic));
    this.resized.observe(this.page.find(".mosaic"));
    listen(this);
  }

  /** Remove listeners, timers and everything else outside of the viewer's elements. */
  destroy() {
    this.group.join("");
    globalThis.removeEventListener(PAYLOAD_EVENT, this.arrived);
    globalThis.removeEventListener(HEADER_EVENT, this.announced);
    this.resized.disconnect();
    cancelAnimationFrame(this.frame);
    clearTimeout(this.announceTimer);
    this.outbox.stop();
    this.faithfulnessBox.stop();
    this.grid?.stop();
    this.picture?.destroy();
  }

  // Shortcuts for tests and benchmarks.

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

  /** Features after the selected block, with colours for the view "components"; null until they have loaded. */
  get features() {
    const { payload, sentFeatures } = this;
    const { after_block, view } = this.selection;
    if (sentFeatures?.block === after_block && sentFeatures.tokens === payload.tokens) return sentFeatures;
    return after_block === payload.blocks - 1 && view !== "components" ? payload.features : null;
  }

  /** Whether everything is painted and sent to Python. */
  get settled() {
    return !this.frame && !this.outbox.pending && !this.root.matches("[data-waiting], [data-busy]");
  }

  // ---- messages from Python ---------------------------------------------------------------------------------

  /**
   * Apply a message from Python.
   *
   * @param {Message} message
   * @param {(selection: unknown) => void} send
   * @param {(label: string) => void} [ask] asks why the explained class rather than this one; absent without a server
   */
  update(message, send, ask) {
    this.outbox.send = send;
    this.name = message.name;
    this.computed = message.computed;
    this.occlusion = message.occlusion;
    this.ablation = message.ablation ?? null;
    this.model = message.model ?? "";
    this.useMasks(message.masks ?? "");
    const canRequestFeatures = typeof message.features === "string";
    const renamed = this.state.canRequestFeatures !== canRequestFeatures || JSON.stringify(this.state.method) !== JSON.stringify(message.method);
    this.state.canRequestFeatures = canRequestFeatures;
    this.useFeatures(message.features ?? "");
    this.alone = Boolean(message.alone);
    this.ownView = Boolean(message.ownView);
    this.group.join(message.group);
    this.root.classList.toggle("compact", message.compact);
    this.page.find(".painting").hidden = !message.paintable;
    showAnswers(this.page, message.answers ?? null, ask);
    this.state.method = message.method;
    const revised = message.revision !== this.revision;
    if (revised) this.startRevision(message);
    if (message.payload !== this.payloadId) {
      this.payloadId = message.payload;
      this.load();
    } else if (this.payload) {
      if (revised || renamed) this.fitSelection();
      this.picture.drawHidden(this.selection.hidden);
      this.request();
    }
  }

  /**
   * Start from the selection of a new revision, or from the user's selection if it was made for that revision.
   *
   * @param {Message} message
   */
  startRevision({ revision, seed }) {
    const stored = lastSelections.get(this.name);
    this.revision = revision;
    this.state.setSelection(stored?.revision === revision ? stored.selection : seed);
    this.outbox.sent = JSON.stringify(seed);
  }

  /** @param {string} id id of a payload that arrived */
  payloadArrived(id) {
    if (id === this.payloadId) this.load();
    else if (this.payload && this.state.method?.chain && id === idOf(this.state.method.chain)) this.request();
    else if (this.loadMasks() || (id === this.featuresId && this.loadFeatures())) this.request();
  }

  /**
   * Use the features with this id. The previous ones are dropped at once, since their picture or basis may differ.
   *
   * @param {string} id "" for the payload's own features
   */
  useFeatures(id) {
    if (id !== this.featuresId) this.sentFeatures = null;
    this.featuresId = id;
    this.loadFeatures();
  }

  /** Load the features if they have arrived; returns whether they have. */
  loadFeatures() {
    const features = this.featuresId ? findPayload(this.featuresId, Features.read) : null;
    if (features) this.sentFeatures = features;
    return features !== null;
  }

  /**
   * Judge maps by the masks with this name. Later payloads of the same name replace them as they arrive.
   *
   * @param {string} name
   */
  useMasks(name) {
    if (name !== this.masksName) this.masks = null;
    this.masksName = name;
    this.loadMasks();
  }

  /** Load the latest masks; returns whether they are new. */
  loadMasks() {
    const masks = this.masksName ? findPayloadByName(this.masksName, (bytes) => new Masks(bytes)) : null;
    if (!masks || masks === this.masks) return false;
    this.masks = masks;
    return true;
  }

  /** Show the payload if it has arrived; otherwise PAYLOAD_EVENT calls this again. */
  load() {
    const payload = findPayload(this.payloadId, (bytes) => new Payload(bytes));
    this.root.toggleAttribute("data-waiting", !payload);
    if (!payload) this.reserve();
    if (!payload || payload === this.payload) return this.request();
    this.root.removeAttribute("data-reserved");
    this.setPayload(payload);
    this.page.find(".waiting").hidden = true;
    this.page.find(".instrument").hidden = false;
    this.draw();
    for (const peer of this.group.peers) peer.repaint();
  }

  /** Reserve space for the first payload as soon as its header is known. */
  reserve() {
    const header = headerOf(this.payloadId);
    if (header && !this.payload) reserve(this, header);
  }

  /**
   * Switch to a payload.
   *
   * @param {Payload} payload
   */
  setPayload(payload) {
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
    this.legend.drawnKey = "";
    listenToChips(this);
    placeMaps(page, payload, this.mosaic);
    showAvailable(page, payload);
    updateSize(page, this.mosaic);
    this.state.setPayload(payload);
    this.fitSelection();
  }

  /** Fit the selection to the payload, and the controls to the selection. */
  fitSelection() {
    this.state.fitSelection();
    this.refresh();
  }

  /** Update all controls from the selection and invalidate all maps. */
  refresh() {
    const { state, selection } = this;
    state.rememberFusions();
    updateControls(this.page, state);
    this.colours.use(/** @type {Uint8Array} */ (this.payload.colormaps.get(selection.colormap)));
    this.grid.repaint();
    this.picture.drawHidden(selection.hidden);
  }

  // ---- user actions -----------------------------------------------------------------------------------------

  /**
   * Draw the effect of an action, here and in the group's other viewers, and send a changed selection to Python.
   *
   * @param {Effect} effect
   * @param {Event} [event] event that caused it
   * @param {number} [after] [ms] before the selection is sent; a later action within that time replaces it
   */
  apply(effect, event, after = 0) {
    if (!effect) return;
    this.group.leader = null;
    if (effect === "chosen") this.refresh();
    this.request(event);
    for (const peer of this.group.peers) peer.follow(this);
    if (effect !== "chosen") return;
    this.announce();
    this.storeSelection();
    this.outbox.post(() => ({ selection: this.selection, revision: this.revision }), after);
  }

  /** @param {Partial<Selection>} values */
  change(values) {
    this.apply(this.state.change(values));
  }

  /** @param {Viewer} leader viewer that the user interacted with */
  follow(leader) {
    this.group.leader = leader;
    if (this.state.follow(leader.state, this.ownView)) {
      this.storeSelection();
      this.fitSelection();
    }
    this.request();
  }

  /** Store the selection so that it survives unmounting. */
  storeSelection() {
    lastSelections.set(this.name, { revision: this.revision, selection: { ...this.selection } });
  }

  /** Announce the sentence to screen readers after SETTLE. */
  announce() {
    clearTimeout(this.announceTimer);
    this.announceTimer = setTimeout(() => {
      setText(this.page.find(".live"), `${this.page.find(".sentence").textContent} ${this.readings.announcement}`);
    }, SETTLE);
  }

  // ---- drawing ----------------------------------------------------------------------------------------------

  /**
   * Draw in the next frame.
   *
   * @param {Event} [event] event that caused it
   */
  request(event) {
    this.stats.noteEvent(event);
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
    this.stats.recordDraw(began);
  }
}

/** @type {WeakMap<HTMLElement, Viewer>} */
const viewers = new WeakMap();

/**
 * Mount a viewer in a parent element, or update the one that is mounted; returns its clean-up function.
 *
 * @param {Pick<Mount, "data" | "parentElement" | "setStateValue"> & { ask?: (label: string) => void }} mount
 */
export function mount({ data, parentElement, setStateValue, ask }) {
  let viewer = viewers.get(parentElement);
  if (!viewer) viewers.set(parentElement, (viewer = new Viewer(parentElement)));
  viewer.update(data, (selection) => setStateValue("selection", selection), ask);
  return () => {
    viewer.destroy();
    viewers.delete(parentElement);
  };
}
