// The numbers of the map over the picture, in every view, and where its colours end. No DOM here.

import { largest, outlined, span, strongest } from "./maps.js";

/** @import { Chain, Payload } from "./payload.js" */
/** @import { Engine } from "./engine.js" */
/** @import { State } from "./state.js" */
/** @import { ComputedMap } from "./types" */

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
    /** @type {Payload} */
    this.comparedWith = payload; // whose token it is
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
   * @param {State} [leader] its token is compared, of another picture
   */
  showSimilar(state, leader) {
    this.compare(leader ? leader.query : state.query, leader?.payload);
    this.show(this.similar, 0, true);
    if (state.selection.scale === "own") [this.low, this.top] = this.span(leader ? -1 : state.query);
    if (state.selection.scale !== "own" || !(this.top > this.low)) [this.low, this.top] = [0, 1];
    const { values, low, top, shades } = this;
    for (let i = 0; i < values.length; i++) shades[i] = Math.max(0, (values[i] - low) / (top - low));
    this.shaded = true;
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
   * @param {Payload} source whose token it is
   */
  compare(token, source = this.payload) {
    const { features, split, tokens } = this.payload;
    if ((this.compared === token && this.comparedWith === source) || !features || !source.features) return;
    this.compared = token;
    this.comparedWith = source;
    features.cosines(token, this.similar, source.features);
    largest(this.similar, split, tokens, source === this.payload ? token : -1, this.nearest);
    this.mutual.fill(0);
    if (source === this.payload || token < source.split) return;
    const cosines = new Float32Array(source.tokens), best = new Int32Array(1);
    this.nearest.forEach((match, i) => {
      if (match < 0) return;
      source.features?.cosines(match, cosines, features);
      largest(cosines, source.split, source.tokens, -1, best);
      this.mutual[i] = Number(best[0] === token);
    });
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
