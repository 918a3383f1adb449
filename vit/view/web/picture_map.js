// The numbers of the map over the picture, in every view, and where its colours end. No DOM here.

import { largest, outlined, span, strongest } from "./maps.js";

/** @import { Chain, Features, Payload } from "./payload.js" */
/** @import { Engine } from "./engine.js" */
/** @import { State } from "./state.js" */
/** @import { ComputedMap } from "./types" */
/** @import { Viewer } from "./viewer.js" */

export const NEAREST = 5; // patches outlined

/**
 * The map over the picture: `values` from `at` on, one per token, if it is `ready`; colours run from `low` to `top`.
 * Buffers are made once per payload, and a map is computed again only where something else was asked.
 */
export class PictureMap {
  /** @param {Payload} payload */
  constructor(payload) {
    const { tokens, patches } = payload;
    this.payload = payload;
    this.rollout = new Float32Array(tokens);
    this.relevance = new Float32Array(tokens);
    this.similar = new Float32Array(tokens); // cosines
    this.nearest = new Int32Array(NEAREST); // the patches most like the query, best first
    this.mutual = new Uint8Array(NEAREST); // of them, those whose own nearest patch in the other picture is the query
    this.marked = new Uint8Array(patches); // inside the outline
    this.shades = new Float32Array(tokens);
    /** @type {string | ComputedMap} */
    this.rolled = ""; // what the rollout was asked, or given with
    /** @type {string | ComputedMap} */
    this.traced = "";
    this.compared = -1; // token whose cosines these are
    /** @type {(Features | null)[]} */
    this.comparedBy = []; // its own features, and those that they were compared with
    /** @type {Uint8Array | null} */
    this.colours = null; // (P, 3), of patches that have some of their own
    /** @type {Float32Array} */
    this.values = this.rollout;
    this.at = 0;
    this.low = 0;
    this.top = 1;
    this.ready = false;
    this.shaded = false;
  }

  /**
   * Attention, or the pooling query's: a map of the grid.
   *
   * @param {Engine} engine
   * @param {State} state
   * @param {number} top of the scale that maps share
   */
  showCell(engine, state, top) {
    const { r, c } = state.cell;
    const ready = engine.need(r, c);
    this.show(engine.values, engine.offset(r, c), ready);
    this.top = ready && state.selection.scale === "own" ? this.strongest(-1) : top;
  }

  /**
   * Rollout, computed here or given by Python.
   *
   * @param {State} state
   * @param {ComputedMap | null} computed
   */
  showRollout(state, computed) {
    const { selection, query } = state;
    const { direction, residual, fusion, discard } = selection;
    if (this.payload.quick) {
      const key = `${query} ${direction} ${residual} ${fusion} ${discard}`;
      if (this.rolled !== key) this.payload.rollout(query, direction, selection, this.rollout);
      this.rolled = key;
      return this.show(this.rollout, 0, true);
    }
    const fits = computed && this.fits(computed, state, query) && computed.direction === direction;
    if (fits && this.rolled !== computed) this.rollout.set(computed.values);
    if (fits) this.rolled = computed;
    this.show(this.rollout, 0, Boolean(fits));
  }

  /**
   * The map of a class, by a chain or given by Python.
   *
   * @param {State} state
   * @param {Chain | null} chain null until it is here
   * @param {ComputedMap | null} computed
   */
  showRelevance(state, chain, computed) {
    const { direction, start_block } = state.selection;
    const token = state.queryOf("relevance");
    if (state.method?.chain) {
      const ready = chain !== null && chain.tokens === this.payload.tokens;
      const key = `${token} ${direction} ${start_block} ${state.method.chain}`;
      if (ready && this.traced !== key) chain.trace(token, direction, start_block, this.relevance);
      if (ready) this.traced = key;
      return this.show(this.relevance, 0, ready);
    }
    const fits = computed && this.fits(computed, state, token) && (token < 0 || computed.direction === direction);
    if (fits && this.traced !== computed) this.relevance.set(computed.values);
    if (fits) this.traced = computed;
    this.show(this.relevance, 0, Boolean(fits));
  }

  /**
   * Nearest patches: cosines, as shares of the way from low to top.
   *
   * @param {State} state
   * @param {Features | null} features null until they are here
   * @param {Viewer | null} leader its token is compared, of another picture
   */
  showSimilar(state, features, leader) {
    this.show(this.similar, 0, features !== null);
    if (!features) return;
    if (leader?.features) this.search(leader.query, features, leader.payload.split, leader.features);
    else this.compare(state.query, features);
    if (state.selection.scale === "own") [this.low, this.top] = this.span(leader ? -1 : state.query);
    if (state.selection.scale !== "own" || !(this.top > this.low)) [this.low, this.top] = [0, 1];
    const { values, low, top, shades } = this;
    for (let i = 0; i < values.length; i++) shades[i] = Math.max(0, (values[i] - low) / (top - low));
    this.shaded = true;
  }

  /**
   * The patches' own colours, with the cosines of a token as numbers.
   *
   * @param {State} state
   * @param {Features | null} features null until they are here
   * @param {Viewer | null} leader
   */
  showComponents(state, features, leader) {
    this.showSimilar(state, features, leader);
    this.colours = features?.colours ?? null;
    this.ready = this.colours !== null;
  }

  /**
   * Numbers to show, with colours from 0 to 1.
   *
   * @param {Float32Array} values
   * @param {number} at
   * @param {boolean} ready
   */
  show(values, at, ready) {
    this.values = values;
    this.at = at;
    this.ready = ready;
    this.low = 0;
    this.top = 1;
    this.shaded = false;
    this.colours = null;
  }

  /**
   * Whether Python's map is of this view and token, and of the settings that are chosen.
   *
   * @param {ComputedMap} computed
   * @param {State} state
   * @param {number} token
   */
  fits(computed, { selection, settings }, token) {
    if (computed.view !== selection.view || computed.token !== token || computed.values.length !== this.payload.tokens) return false;
    return settings.every((name) => computed.settings[name] === selection[name]);
  }

  /**
   * Compute the cosines of a token, and the patches most like it.
   *
   * @param {number} token
   * @param {Features} features
   */
  compare(token, features) {
    if (!this.computeCosines(token, features, features)) return;
    largest(this.similar, this.payload.split, features.tokens, token, this.nearest);
    this.mutual.fill(0);
  }

  /**
   * The same for a token of another picture, and which of the patches are nearest to each other.
   *
   * @param {number} token
   * @param {Features} features
   * @param {number} split where the other picture's patches begin
   * @param {Features} others
   */
  search(token, features, split, others) {
    if (!this.computeCosines(token, features, others)) return;
    largest(this.similar, this.payload.split, features.tokens, -1, this.nearest);
    this.mutual.fill(0);
    if (token < split) return;
    const cosines = new Float32Array(others.tokens), best = new Int32Array(1);
    this.nearest.forEach((match, i) => {
      if (match < 0) return;
      others.cosines(match, cosines, features);
      largest(cosines, split, others.tokens, -1, best);
      this.mutual[i] = Number(best[0] === token);
    });
  }

  /**
   * True if they were others before.
   *
   * @param {number} token
   * @param {Features} features
   * @param {Features} others whose token it is
   */
  computeCosines(token, features, others) {
    const [own, other] = this.comparedBy;
    if (this.compared === token && own === features && other === others) return false;
    this.compared = token;
    this.comparedBy = [features, others];
    features.cosines(token, this.similar, others);
    return true;
  }

  /** @param {number} except a token, -1 for none */
  strongest(except) {
    return strongest(this.values, this.at, this.payload.split, this.payload.tokens, except);
  }

  /** @param {number} except a token */
  span(except) {
    return span(this.values, this.payload.split, this.payload.tokens, except);
  }

  /** @returns what colours stand for: the values of patches, where they begin, and the value of the last colour */
  get painted() {
    const { payload, at, top, shaded } = this;
    return { values: shaded ? this.shades : this.values, at: at + payload.split, top: shaded ? 1 : top };
  }

  /**
   * Mark the patches inside the outline.
   *
   * @param {string} kind "mass" or "otsu"
   * @param {number} mass
   */
  outline(kind, mass) {
    return outlined(this.values, this.at + this.payload.split, kind, mass, this.marked);
  }
}
