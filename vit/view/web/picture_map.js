// Computes the map over the picture and its colour range, for every view. No DOM access.

import { largest, outlined, span, strongest } from "./maps.js";

/** @import { Chain, Features, GrowingMap, Payload } from "./payload.js" */
/** @import { Engine } from "./engine.js" */
/** @import { State } from "./state.js" */
/** @import { ComputedMap } from "./types" */
/** @import { Viewer } from "./viewer.js" */

export const NEAREST = 5; // number of nearest patches to outline

/**
 * The map over the picture: one value per token, in `values` from index `at`, valid if `ready`; colours run from `low`
 * to `top`. Buffers are allocated once per payload, and a map is recomputed only when its inputs change.
 */
export class PictureMap {
  /** @param {Payload} payload */
  constructor(payload) {
    const { tokens, patches } = payload;
    this.payload = payload;
    this.rollout = new Float32Array(tokens);
    this.relevance = new Float32Array(tokens);
    this.similar = new Float32Array(tokens); // cosines
    this.nearest = new Int32Array(NEAREST); // patches most similar to the query, best first
    this.mutual = new Uint8Array(NEAREST); // 1 for those whose own nearest patch in the other picture is the query
    this.marked = new Uint8Array(patches); // inside the outline
    this.shades = new Float32Array(tokens);
    /** @type {string | ComputedMap} */
    this.rolloutKey = ""; // inputs of `rollout`, or the map from Python
    /** @type {string | ComputedMap} */
    this.relevanceKey = "";
    /** @type {Chain | GrowingMap | null} */
    this.chain = null; // that `relevance` was traced through
    this.cosineToken = -1; // token of `similar`
    /** @type {(Features | null)[]} */
    this.cosineFeatures = []; // features of this picture, and those that the token belongs to
    /** @type {Uint8Array | null} */
    this.colours = null; // (P, 3), for the view "components"
    /** @type {Float32Array} */
    this.values = this.rollout;
    this.at = 0;
    this.low = 0;
    this.top = 1;
    this.ready = false;
    this.shaded = false;
    this.signed = false; // values can be negative: colours run from -top over 0 to top
  }

  /**
   * Show attention or the pooling query: a map of the grid.
   *
   * @param {Engine} engine
   * @param {State} state
   */
  showCell(engine, state) {
    const { r, c } = state.cell;
    const ready = engine.ensureCell(r, c);
    this.setValues(engine.values, engine.offset(r, c), ready);
  }

  /**
   * Show rollout, computed here or by Python.
   *
   * @param {State} state
   * @param {ComputedMap | null} computed
   */
  showRollout(state, computed) {
    const { selection, query } = state;
    const { direction, residual, fusion, discard } = selection;
    if (this.payload.quick) {
      const key = `${query} ${direction} ${residual} ${fusion} ${discard}`;
      if (this.rolloutKey !== key) this.payload.rollout(query, direction, selection, this.rollout);
      this.rolloutKey = key;
      return this.setValues(this.rollout, 0, true);
    }
    const fits = computed && this.matches(computed, state, query) && computed.direction === direction;
    if (fits && this.rolloutKey !== computed) this.rollout.set(computed.values);
    if (fits) this.rolloutKey = computed;
    this.setValues(this.rollout, 0, Boolean(fits));
  }

  /**
   * Show a class's map, traced through a chain or computed by Python.
   *
   * @param {State} state
   * @param {Chain | GrowingMap | null} chain null until it has loaded
   * @param {ComputedMap | null} computed
   */
  showRelevance(state, chain, computed) {
    const { direction, start_block } = state.selection;
    const token = state.queryOf("relevance");
    if (state.method?.chain) {
      const key = `${token} ${direction} ${start_block} ${state.method.chain}`;
      if (chain?.tokens === this.payload.tokens && (this.relevanceKey !== key || this.chain !== chain)) {
        chain.trace(token, direction, start_block, this.relevance);
        [this.relevanceKey, this.chain] = [key, chain];
      }
      const ready = this.relevanceKey === key; // a growing map stays until the next one has arrived
      this.setValues(this.relevance, 0, ready);
      this.signed = ready && state.method.signed;
      return;
    }
    const fits = computed && this.matches(computed, state, token) && (token < 0 || computed.direction === direction);
    if (fits && this.relevanceKey !== computed) this.relevance.set(computed.values);
    if (fits) this.relevanceKey = computed;
    this.setValues(this.relevance, 0, Boolean(fits));
    this.signed = Boolean(fits && state.method?.signed);
  }

  /**
   * Set the value of the last colour.
   *
   * @param {number} top
   */
  setTop(top) {
    this.top = top;
    if (!this.signed) return;
    this.low = -top;
    for (let i = 0; i < this.values.length; i++) this.shades[i] = (this.values[i] + top) / (2 * top);
    this.shaded = true;
  }

  /**
   * Show nearest patches: cosines, scaled from low..top to 0..1.
   *
   * @param {State} state
   * @param {Features | null} features null until they have loaded
   * @param {Viewer | null} leader viewer of another picture whose token is compared, if any
   */
  showSimilar(state, features, leader) {
    this.setValues(this.similar, 0, features !== null);
    if (!features) return;
    if (leader?.features) this.compareAcross(leader.query, features, leader.payload.split, leader.features);
    else this.compareWithin(state.query, features);
    if (state.selection.scale === "own") [this.low, this.top] = this.span(leader ? -1 : state.query);
    if (state.selection.scale !== "own" || !(this.top > this.low)) [this.low, this.top] = [0, 1];
    const { values, low, top, shades } = this;
    for (let i = 0; i < values.length; i++) shades[i] = Math.max(0, (values[i] - low) / (top - low));
    this.shaded = true;
  }

  /**
   * Show the patches' component colours; the values are cosines of a token.
   *
   * @param {State} state
   * @param {Features | null} features null until they have loaded
   * @param {Viewer | null} leader
   */
  showComponents(state, features, leader) {
    this.showSimilar(state, features, leader);
    this.colours = features?.colours ?? null;
    this.ready = this.colours !== null;
  }

  /**
   * Use these values, with a colour range of 0 to 1.
   *
   * @param {Float32Array} values
   * @param {number} at
   * @param {boolean} ready
   */
  setValues(values, at, ready) {
    this.values = values;
    this.at = at;
    this.ready = ready;
    this.low = 0;
    this.top = 1;
    this.shaded = false;
    this.signed = false;
    this.colours = null;
  }

  /**
   * Whether Python's map belongs to this view, token and settings.
   *
   * @param {ComputedMap} computed
   * @param {State} state
   * @param {number} token
   */
  matches(computed, { selection, settings }, token) {
    if (computed.view !== selection.view || computed.token !== token || computed.values.length !== this.payload.tokens) return false;
    return settings.every((name) => computed.settings[name] === selection[name]);
  }

  /**
   * Compute the cosines of a token of this picture and its nearest patches.
   *
   * @param {number} token
   * @param {Features} features
   */
  compareWithin(token, features) {
    if (!this.computeCosines(token, features, features)) return;
    largest(this.similar, this.payload.split, features.tokens, token, this.nearest);
    this.mutual.fill(0);
  }

  /**
   * Compute the cosines of a token of another picture, its nearest patches here, and which of them match mutually.
   *
   * @param {number} token
   * @param {Features} features
   * @param {number} split index of the other picture's first patch
   * @param {Features} others features of the other picture
   */
  compareAcross(token, features, split, others) {
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
   * Compute the cosines unless they are cached; returns whether it did.
   *
   * @param {number} token
   * @param {Features} features
   * @param {Features} others features that the token belongs to
   */
  computeCosines(token, features, others) {
    const [own, other] = this.cosineFeatures;
    if (this.cosineToken === token && own === features && other === others) return false;
    this.cosineToken = token;
    this.cosineFeatures = [features, others];
    features.cosines(token, this.similar, others);
    return true;
  }

  /** @param {number} except token to ignore, -1 for none */
  strongest(except) {
    if (this.signed) return Math.max(...this.span(except).map(Math.abs));
    return strongest(this.values, this.at, this.payload.split, this.payload.tokens, except);
  }

  /** @param {number} except token to ignore, -1 for none */
  span(except) {
    return span(this.values, this.payload.split, this.payload.tokens, except);
  }

  /** @returns values to paint: the array, the index of the first patch, and the value of the last colour */
  get painted() {
    const { payload, at, top, shaded } = this;
    return { values: shaded ? this.shades : this.values, at: at + payload.split, top: shaded ? 1 : top };
  }

  /**
   * Mark the patches inside the contour.
   *
   * @param {string} kind "mass" or "otsu"
   * @param {number} mass
   */
  outline(kind, mass) {
    return outlined(this.values, this.at + this.payload.split, kind, mass, this.marked);
  }
}
