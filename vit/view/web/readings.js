// The four readings beside the maps.

import { GLOSSARY, chipName, signed, effective, multiple, ordinal, percent, position } from "./captions.js";
import { summary } from "./maps.js";
import { isTouch, setText } from "./page.js";
import { translate } from "./words.js";

/** @import { Page } from "./page.js" */
/** @import { Payload } from "./payload.js" */
/** @import { PictureMap } from "./picture_map.js" */
/** @import { State } from "./state.js" */
/** @import { View } from "./types" */

/** The readings of one viewer. */
export class Readings {
  /** @param {Page} page */
  constructor(page) {
    this.boxes = /** @type {NodeListOf<HTMLElement>} */ (page.root.querySelectorAll(".folded .readings > div"));
    this.rows = [...this.boxes].map((row) => [...row.children]);
    this.value = NaN; // weight or cosine of the token under the pointer
  }

  /** The strongest patch as a sentence for screen readers. */
  get announcement() {
    const [label, where, detail] = this.rows[2];
    return `${label.textContent} ${where.textContent}, ${detail.textContent}.`;
  }

  /**
   * Draw the readings of an attention or relevance map.
   *
   * @param {PictureMap} map
   * @param {State} state
   * @param {View} view
   * @param {number} query token that the map belongs to
   */
  draw(map, state, view, query) {
    const { values, at, payload } = map;
    const { tokens, split } = payload;
    const to = !state.sumsToOne(view);
    const whole = summary(values, at, split, tokens);
    if (map.signed) this.drawSides(map);
    else if (to) this.setReading(0, "Mean weight received", percent(whole.sum / tokens), `${multiple(whole.sum)} uniform`, GLOSSARY.uniform);
    else this.drawSpread(whole, tokens, isExtreme(state, view));
    this.drawPrefix(map, whole.prefix, to);
    this.drawStrongest(map, whole.best);
    this.drawKeyToken(map, state, query, to);
  }

  /**
   * Draw how much of a signed map speaks for the class.
   *
   * @param {PictureMap} map
   */
  drawSides({ values }) {
    const [plus, minus] = [1, -1].map((sign) => values.reduce((sum, value) => sum + Math.max(0, sign * value), 0));
    this.setReading(0, "Evidence for it", percent(plus), `against it ${percent(minus)}`, GLOSSARY.sides);
  }

  /**
   * @param {{ sum: number, entropy: number }} whole
   * @param {number} tokens
   * @param {boolean} extreme the map is a maximum or minimum of several maps
   */
  drawSpread({ sum, entropy }, tokens, extreme) {
    if (!(sum > 0)) return this.setReading(0, "Spread", "–", "the map is zero", GLOSSARY.spread);
    if (extreme) return this.setReading(0, "Spread", "–", "not defined for a maximum or minimum", GLOSSARY.spread);
    const share = (entropy / Math.log(tokens)).toFixed(2);
    const many = `${effective(Math.exp(entropy))} of ${tokens} tokens`;
    this.setReading(0, "Spread", many, `entropy ${share} of uniform`, GLOSSARY.spread);
  }

  /**
   * @param {PictureMap} map
   * @param {number} sum total weight of the prefix tokens
   * @param {boolean} to
   */
  drawPrefix(map, sum, to) {
    const { values, at, payload } = map;
    const { prefix, split, tokens } = payload;
    if (!split) return this.setReading(1, "Prefix tokens", "none", "in this model", GLOSSARY.prefix);
    const first = chipName(prefix[0]).toLowerCase();
    const both = `${GLOSSARY.prefix}. ${GLOSSARY.uniform}`;
    if (to) this.setReading(1, `From ${first}`, percent(values[at]), `${multiple(values[at] * tokens)} uniform`, both);
    else if (map.signed) this.setReading(1, split === 1 ? `On ${first}` : `On ${split} prefix tokens`, percent(sum), "of the evidence", GLOSSARY.sides);
    else if (split === 1) this.setReading(1, `On ${first}`, percent(sum), `${multiple(sum * tokens)} uniform`, both);
    else this.setReading(1, `On ${split} prefix tokens`, percent(sum), `${first} ${percent(values[at])}`, GLOSSARY.prefix);
  }

  /**
   * @param {PictureMap} map
   * @param {number} best token of the strongest patch
   */
  drawStrongest(map, best) {
    const { values, at, payload } = map;
    const most = values[at + best];
    if (!(most > 0)) return this.setReading(2, translate("Strongest patch"), "–", translate("every patch is 0"), GLOSSARY.uniform);
    const share = percent(most);
    const detail = map.signed ? share : translate("{share} · {times} uniform", { share, times: multiple(most * payload.tokens) });
    const artefact = payload.artefacts.includes(best);
    const meaning = artefact ? GLOSSARY.artefact : GLOSSARY.uniform;
    this.setReading(2, translate("Strongest patch"), position(payload, best), artefact ? `${detail} · an artefact` : detail, meaning);
  }

  /**
   * @param {PictureMap} map
   * @param {State} state
   * @param {number} query
   * @param {boolean} to
   */
  drawKeyToken(map, state, query, to) {
    const { values, at, payload } = map;
    const { tokens } = payload;
    const fixed = state.selection.pinned || state.queryFixed || query < 0;
    const key = fixed ? state.readKey : query;
    this.value = fixed && key >= 0 ? values[at + key] : NaN;
    if (key < 0) return this.drawHint(isTouch() ? "tap a patch" : "point at a patch", GLOSSARY.uniform);
    const weight = values[at + key];
    let stronger = 0;
    for (let i = 0; i < tokens; i++) if (values[at + i] > weight) stronger++;
    this.setReading(
      3,
      fixed && key !== query ? tokenTitle(payload, key) : to ? "From itself" : "On itself",
      `≈ ${percent(weight)}`, // approximate, because maps are quantised, see payload.py
      `${map.signed ? (weight < 0 ? "against it" : "for it") : `${multiple(weight * tokens)} uniform`} · ${ordinal(stronger + 1)} of ${tokens}`,
      GLOSSARY.uniform,
    );
  }

  /**
   * Draw the readings of a map of cosines.
   *
   * @param {PictureMap} map
   * @param {State} state
   * @param {number} query the token, -1 if it belongs to another picture
   */
  drawSimilar(map, { readKey, selection }, query) {
    const { values, payload } = map;
    const { tokens, split, prefix } = payload;
    const key = selection.pinned ? readKey : -1;
    this.value = key >= 0 ? values[key] : NaN;
    let sum = 0, others = 0, above = 0;
    for (let i = split; i < tokens; i++)
      if (i !== query) {
        sum += values[i];
        others++;
        if (values[i] > this.value) above++;
      }
    this.drawNearest(map, query, sum / others);
    if (!split) this.setReading(1, "Prefix tokens", "none", "in this model", GLOSSARY.prefix);
    else this.setReading(1, chipName(prefix[0]), signed(values[0]), query === 0 ? "itself" : "cosine", GLOSSARY.prefix);

    const acts = isTouch() ? ["tap a patch", "tap to pin, then tap others"] : ["point at a patch", "click to pin, then point at others"];
    if (key < 0) return this.drawHint(acts[selection.pinned ? 0 : 1], GLOSSARY.cosine);
    const rank = key < split ? "cosine" : `${ordinal(above + 1)} of ${others} other patches`;
    this.setReading(3, tokenTitle(payload, key), signed(values[key]), key === query ? "itself" : rank, GLOSSARY.cosine);
  }

  /**
   * @param {PictureMap} map
   * @param {number} query
   * @param {number} mean mean cosine of the other patches
   */
  drawNearest(map, query, mean) {
    const { values, payload, nearest } = map;
    const [best, next] = nearest;
    if (best < 0) {
      this.setReading(0, "Mean of other patches", "–", "no other patch", GLOSSARY.cosine);
      this.setReading(2, "Most similar patch", "–", "no other patch", GLOSSARY.cosine);
      return;
    }
    const [low, top] = map.span(query);
    const second = next < 0 ? "" : `, the next ${signed(values[next])}`;
    this.setReading(0, "Mean of other patches", signed(mean), `cosines from ${signed(low)} to ${signed(top)}`, GLOSSARY.cosine);
    this.setReading(2, "Most similar patch", position(payload, best), `cosine ${signed(values[best])}${second}`, GLOSSARY.cosine);
  }

  /**
   * Show how to read a patch.
   *
   * @param {string} act
   * @param {string} meaning
   */
  drawHint(act, meaning) {
    this.setReading(3, isTouch() ? "Tapped patch" : "Under the pointer", "–", act, meaning);
  }

  /**
   * @param {number} index
   * @param {string} label
   * @param {string} value
   * @param {string} detail
   * @param {string} meaning tooltip
   */
  setReading(index, label, value, detail, meaning) {
    [label, value, detail].forEach((text, i) => setText(this.rows[index][i], text));
    if (this.boxes[index].title !== meaning) this.boxes[index].title = meaning;
  }
}

/**
 * Whether a map is the maximum or minimum of several, whose weights do not sum to 1.
 *
 * @param {State} state
 * @param {View} view
 */
function isExtreme(state, view) {
  const { r, c } = state.cell;
  if (view === "rollout" || view === "relevance") return false;
  return (r === 0 && state.fuseBlocks !== "mean") || (c === 0 && state.fuseHeads !== "mean");
}

/**
 * @param {Payload} payload
 * @param {number} token
 */
function tokenTitle(payload, token) {
  return token < payload.split ? chipName(payload.prefix[token]) : `Patch (${position(payload, token)})`;
}
