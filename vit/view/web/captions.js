// The viewer's texts and number formats. Texts count from 1, the code from 0. No DOM access.

import { verdictWord } from "./faithfulness.js";
import { comparesFeatures } from "./selection.js";
import { SENTENCES } from "./sentences.js";
import { decimal, translate } from "./words.js";

/** @import { Ablation, Direction, Fusion, Method, Occlusion, Selection, Setting, TokenLayout, Verdict, View } from "./types" */

/**
 * Format a rank: "1st", "12th".
 *
 * @param {number} n
 */
export function ordinal(n) {
  const tail = n % 100;
  const suffix = tail >= 11 && tail <= 13 ? "th" : ["th", "st", "nd", "rd"][n % 10] ?? "th";
  return `${n}${suffix}`;
}

/**
 * Format a share with two significant digits: "31%", "3.1%", "−0.31%".
 *
 * @param {number} share
 * @returns {string}
 */
export function percent(share) {
  if (share < 0) return `−${percent(-share)}`;
  const p = 100 * share;
  if (p > 0 && p < 0.001) return `< ${withPercentSign("0.001")}`;
  if (p >= 99.95) return withPercentSign("100");
  return withPercentSign(p >= 99.5 ? p.toFixed(1) : p >= 10 ? p.toFixed(0) : p >= 1 ? p.toFixed(1) : p >= 0.1 ? p.toFixed(2) : p > 0 ? p.toFixed(3) : "0");
}

/** @param {string} digits */
function withPercentSign(digits) {
  return translate("{digits}%", { digits: decimal(digits) });
}

/**
 * Format a multiple of uniform attention: "12×", "2.7×", "0.31×".
 *
 * @param {number} times
 */
export function multiple(times) {
  if (times >= 9.95) return `${Math.round(times)}×`;
  if (times >= 0.995) return `${decimal(times.toFixed(1))}×`;
  return times >= 0.005 ? `${decimal(times.toFixed(2))}×` : times > 0 ? `< ${decimal("0.01")}×` : "0×";
}

/**
 * Format a cosine or a correlation: "0.93", "−0.12".
 *
 * @param {number} value
 */
export function signed(value) {
  const digits = Math.abs(value).toFixed(2);
  return (value < 0 && digits !== "0.00" ? "−" : "") + decimal(digits);
}

/**
 * Return the label of a prefix token's chip.
 *
 * @param {string} name
 */
export function chipName(name) {
  if (name === "cls") return translate("Class token");
  if (name === "dist") return "Distillation";
  const register = /^reg(\d+)$/.exec(name);
  return register ? translate("Register {number}", { number: register[1] }) : name;
}

/**
 * Explain the purpose of a prefix token; "" for an unknown name.
 *
 * @param {string} name
 */
export function prefixMeaning(name) {
  if (name === "cls") return translate("Token without a patch: it collects information from all patches, and the classifier reads it");
  if (name === "dist") return "Token without a patch, trained to reproduce the predictions of a larger model";
  if (!/^reg\d+$/.test(name)) return "";
  return translate("Token without a patch: it stores information about the whole picture, which a model without it stores in patches");
}

/** Tooltips that explain the terms beside the maps. */
export const GLOSSARY = {
  sides: "Shares of the evidence: the absolute values of all tokens add up to 100%",
  spread: "Over how many tokens the attention is spread: the exponential of its entropy. Entropy of uniform: 0 is a single token, 1 is all tokens equally",
  uniform: "× uniform: multiples of the weight that each token would have if attention were spread evenly",
  prefix: "Tokens before the patches, which belong to no place in the picture: the answer is read from the class token, registers store information about the whole picture",
  faithful:
    "Random parts of the picture were masked, the same ones for every map. The number is the correlation between this map's total weight in a mask and how far the explained output drops without those patches: 1 is perfect, 0 is no relation. Chance: shifted and mirrored copies of the map. Removal map: fitted to these drops, scored on masks that it was not fitted to",
  artefact: "The features of this patch have an outlying norm: models without registers store information about the whole picture in such patches, so it says little about its place (Darcet et al. 2024)",
  cosine: "Cosine of two tokens' features: 1 is the same direction, 0 is unrelated",
};

/**
 * Return the title of the faithfulness score. While masks are still being measured, it includes their number.
 *
 * @param {{ target: string, count: number, complete: boolean }} masks
 */
export function faithfulTitle({ target, count, complete }) {
  return `Faithful to “${target}”${complete ? "" : `, by ${count} masks so far`}`;
}

/**
 * Format a map's faithfulness, with "≈" while masks are still being measured.
 *
 * @param {number} correlation
 * @param {{ complete: boolean }} masks
 */
export function faithfulness(correlation, { complete }) {
  return `${complete ? "" : "≈ "}${signed(correlation)}`;
}

/**
 * Say whether a map is better than chance, and how far the removal map gets.
 *
 * @param {Verdict | undefined} verdict undefined until it is computed
 * @param {{ ceiling: number, complete: boolean }} masks
 */
export function verdictText(verdict, { ceiling, complete }) {
  const word = verdict ? verdictWord(verdict) : "…";
  return `${complete ? word.replace(" yet", "") : word} · removal map ${signed(ceiling)}`;
}

/**
 * Describe a method: what its map shows, how it works, and where to choose another.
 *
 * @param {Method} method
 */
export function methodMeaning(method) {
  const words = method.sentence ? ` ${method.sentence}` : "";
  return `${capital(purpose(method))}.${words} Choose another above`;
}

/**
 * Return a patch's row and column as text.
 *
 * @param {TokenLayout} layout
 * @param {number} token
 */
export function position(layout, token) {
  const patch = token - layout.split;
  return translate(SENTENCES.where, { row: Math.floor(patch / layout.cols) + 1, col: (patch % layout.cols) + 1 });
}

/**
 * Return a token's name as it appears in a sentence.
 *
 * @param {TokenLayout} layout
 * @param {number} token
 */
export function tokenName(layout, token) {
  if (token >= layout.split) return translate(SENTENCES.patch, { where: position(layout, token) });
  const name = layout.prefix[token];
  if (name === "cls" || name === "dist") return translate(SENTENCES[name]);
  const register = /^reg(\d+)$/.exec(name);
  return register ? translate(SENTENCES.register, { number: register[1] }) : translate(SENTENCES.otherToken, { name });
}

/** @type {{ name: "start_block" | "residual" | "fusion" | "discard", initial: number | string, values: (value: any) => Record<string, string | number> }[]} */
const SETTINGS = [
  { name: "start_block", initial: 0, values: (value) => ({ block: value + 1 }) },
  { name: "residual", initial: 0.5, values: (value) => ({ percent: Math.round(100 * value) }) },
  { name: "fusion", initial: "mean", values: (fusion) => ({ fusion }) },
  { name: "discard", initial: 0, values: (value) => ({ percent: Math.round(100 * value) }) },
];

/**
 * Return a method's settings that differ from their defaults, as a suffix of its title.
 *
 * @param {Setting[]} names settings that the method has
 * @param {Selection} selection
 */
export function settingsText(names, selection) {
  const changed = SETTINGS.filter(({ name, initial }) => names.includes(name) && selection[name] !== initial);
  return changed.length ? ` (${changed.map(({ name, values }) => translate(SENTENCES[name], values(selection[name]))).join(", ")})` : "";
}

/**
 * Describe a method's map when no token is selected.
 *
 * @param {Method} method
 */
function purpose(method) {
  const { target } = method;
  return target ? translate(method.signed ? SENTENCES.speaksForOrAgainst : SENTENCES.speaksFor, { target }) : translate(SENTENCES.readFrom);
}

/**
 * Return the sentence that describes the map on the picture.
 *
 * @param {TokenLayout} layout
 * @param {object} shown
 * @param {View} shown.view
 * @param {Direction} shown.direction
 * @param {number | Fusion} shown.block
 * @param {number | Fusion} shown.head
 * @param {number} shown.token token that the map belongs to, -1 for none
 * @param {Method | null} shown.method method of the view "relevance"
 * @param {string} shown.settings result of settingsText
 * @param {string} shown.after result of afterBlock
 */
export function sentence(layout, { view, direction, block, head, token, method, settings, after }) {
  const name = tokenName(layout, Math.max(token, 0));
  const to = direction === "to";
  if (view === "relevance" && method) {
    const title = `${method.title}${settings}`;
    if (token < 0) return `${title}: ${purpose(method)}.`;
    const of = method.target && translate(SENTENCES.forClass, { target: method.target });
    return `${title}${of}: ${translate(to ? SENTENCES.whichDrewOn : SENTENCES.drewOn, { name })}.`;
  }
  if (view === "rollout") return translate(to ? SENTENCES.rolloutTo : SENTENCES.rolloutFrom, { settings, name });
  if (view === "similar") return translate(SENTENCES.similar, { name, after });
  if (view === "components") return `${translate(SENTENCES.components, { after })}; outlined, patches most like ${name}.`;
  if (view === "pool") return translate(SENTENCES.pool, { heads: headName(head) });
  return translate(to ? SENTENCES.attentionTo : SENTENCES.attentionFrom, { map: mapName(block, head), name });
}

/**
 * Describe the map of matches for a token of another picture.
 *
 * @param {TokenLayout} layout layout of the other picture
 * @param {number} token
 * @param {string} after result of afterBlock
 */
export function matchesSentence(layout, token, after) {
  const name = tokenName(layout, token);
  return `Patches most like ${name} of the other picture, after ${after}; a double line marks mutual best matches.`;
}

/**
 * Return the name of a block whose output is compared.
 *
 * @param {number} block
 * @param {number} blocks
 */
export function afterBlock(block, blocks) {
  return block === blocks - 1 ? translate(SENTENCES.lastBlock) : translate(SENTENCES.block, { block: block + 1 });
}

/**
 * Return the name of a map of the grid.
 *
 * @param {number | Fusion} block
 * @param {number | Fusion} head
 */
function mapName(block, head) {
  const heads = headName(head);
  if (typeof block === "number") return translate(SENTENCES.blockAndHeads, { block: block + 1, heads });
  const fusion = translate(block);
  if (typeof head === "number") return translate(SENTENCES.headOfBlocks, { head: head + 1, fusion });
  return block === head ? translate(SENTENCES.everything, { Fusion: capital(fusion) }) : translate(SENTENCES.fusedBlocks, { Fusion: capital(fusion), heads });
}

/** @param {number | Fusion} head */
function headName(head) {
  return typeof head === "string" ? translate(SENTENCES.fusedHeads, { fusion: translate(head) }) : translate(SENTENCES.head, { head: head + 1 });
}

/**
 * Describe how much of a map the hidden patches hold, as `vit.explain.regions.region_score`.
 *
 * @param {Float32Array} patches values of the patches
 * @param {number[]} hidden
 * @param {boolean} ofClass the map is signed, and its positive values count
 */
export function regionText(patches, hidden, ofClass) {
  const [held, whole] = [hidden.map((patch) => patches[patch]), [...patches]].map((part) => part.reduce((sum, value) => sum + Math.max(0, value), 0));
  const most = hidden.includes(patches.indexOf(Math.max(...patches))) ? "with" : "without";
  const what = ofClass ? "the evidence for it" : "the map";
  return `The hidden patches are ${percent(hidden.length / patches.length)} of the picture and hold ${percent(held / (whole || 1))} of ${what}, ${most} its maximum.`;
}

/**
 * Describe how the answer changes when a patch is replaced.
 *
 * @param {Occlusion} occlusion
 * @param {number} patch
 * @param {string} where
 */
export function occlusionText({ after, answers, ...rest }, patch, where) {
  return `Without the patch (${where}): ${answerText({ ...rest, after: after[patch], answer: answers[patch] })}`;
}

/** @param {number} value in any unit, formatted as by `vit.view.prediction.written` */
const number = (value) => (Math.abs(value) < 1e4 ? String(+value.toPrecision(4)) : Math.round(value).toLocaleString("en")).replace("-", "−");

/**
 * Describe how the answer changes.
 *
 * @param {Omit<Ablation, "hidden">} change
 */
export function answerText({ target, before, after, answer, numbers }) {
  if (numbers) return `“${target}” = ${number(after)} (${after < before ? "" : "+"}${number(after - before)}).`;
  const points = 100 * (after - before);
  const change = `${points < 0 ? "−" : "+"}${Math.abs(points).toFixed(1)} points`;
  return `“${target}” ${percent(after)} (${change}).${answer ? ` The answer becomes “${answer}”.` : ""}`;
}

/**
 * Explain the colour scale of a map.
 *
 * @param {object} payload
 * @param {number} payload.tokens
 * @param {unknown} payload.pool truthy if the model has a pooling query
 * @param {View} view
 * @param {Selection["scale"]} scale
 * @param {number} low
 * @param {number} top
 * @param {boolean} shared another map of the same kind uses the same scale
 * @param {boolean} [whole] the map's weights sum to 100%
 * @param {boolean} [exceeded] the map has stronger patches than the end of the scale
 */
export function legendText({ tokens, pool }, view, scale, low, top, shared, whole = true, exceeded = false) {
  const alone = "Colours of two maps cannot be compared.";
  if (view === "components") return "Red, green and blue: the three directions in which the features of the patches differ most. Black patches are outliers: the norm of their features is far larger than that of the others.";
  if (view === "similar")
    return scale === "own"
      ? `This map alone: from its least similar patch, ${signed(low)}, to its most similar other one, ${signed(top)}. ${alone}`
      : "One scale for every patch: a cosine of 1 is the same direction, 0 is unrelated; below 0 has the colour of 0.";
  const both = shared && scale !== "own";
  if (low < 0) {
    const those = both ? "One scale for both maps" : "This map alone";
    return `${those}: from blue, against it, to red, for it, up to ${percent(top)} of all evidence; pale is 0.`;
  }
  const ends =
    translate("it ends at {top}: in half of the heads no patch is stronger; stronger ones share the last colour. Tokens that are not patches do not count.", { top: percent(top) });
  const other = translate("it ends at the strongest patch other than the token itself, {top}.", { top: percent(top) });
  const reach =
    view === "relevance" ? `${both ? "One scale for both maps" : "This map alone"}${whole ? ", in shares of all its weight" : ""}: ${other}`
    : view === "rollout" ? both ? `One scale for both rollouts: ${other}` : translate("This rollout alone: {other}", { other })
    : scale === "own" ? translate("This map alone: it ends at its strongest patch, {top}. Colours of two maps cannot be compared.", { top: percent(top) })
    : !exceeded ? translate("The large map ends at its strongest patch, {top}; the maps of the grid have one scale.", { top: percent(top) })
    : view === "pool" ? `One scale for every head of the pooling query: ${ends}`
    : pool ? `One scale for every block and head; the pooling query has another. For this query ${ends}`
    : translate("One scale for every block and head. For this query {ends}", { ends });
  return `${reach} ${translate("Uniform attention is 1/{tokens} = {share}.", { tokens, share: percent(1 / tokens) })}`;
}

/**
 * Return the share of the features' variance that each colour stands for.
 *
 * @param {{ shares: number[], pictures: number }} features
 */
export function sharesText({ shares, pictures }) {
  const [red, green, blue] = shares.map(percent);
  const whose = pictures > 1 ? `the patches of ${pictures} pictures` : "the patches";
  return `Red ${red}, green ${green}, blue ${blue} of how ${whose} differ`;
}

/**
 * Explain why there is no map yet.
 *
 * @param {View} view view whose map the server computes
 * @param {Method | null} method
 * @param {boolean} pinned
 * @param {boolean} alone there is no server or kernel that could compute it
 */
export function waitingText(view, method, pinned, alone) {
  if (alone) return "Only the app can compute this map";
  if (comparesFeatures(view)) return "Reading the features …";
  if (view === "relevance") return `Computing ${method?.title} …`;
  return pinned ? "Computing the rollout …" : "Click a patch for its rollout";
}

/**
 * Explain which patches are left uncovered: those below the mean.
 *
 * @param {View} view
 * @param {number} mean
 */
export function clearText(view, mean) {
  return ` ${translate("On the picture, patches below the mean ({mean}) are not coloured.", { mean: view === "similar" ? signed(mean) : percent(mean) })}`;
}

/**
 * Capitalise a word.
 *
 * @param {string} word
 */
export function capital(word) {
  return word[0].toUpperCase() + word.slice(1);
}

/**
 * Write up to `most` evenly spaced round numbers from `low` to `top` into out; returns their count.
 *
 * @param {number} low
 * @param {number} top
 * @param {number} most
 * @param {Float64Array} out
 */
export function roundTicks(low, top, most, out) {
  const span = top - low;
  if (!(span > 0)) return 0;
  const power = 10 ** Math.floor(Math.log10(span / most));
  let step = power;
  for (const times of [1, 2, 2.5, 5, 10]) {
    step = times * power;
    if (span / step <= most) break;
  }
  let count = 0;
  for (let i = Math.ceil(low / step - 0.0001); i * step <= top + span * 0.0001 && count < out.length; i++) out[count++] = i * step;
  return count;
}

/**
 * Format an effective number of tokens: "1.3", "41".
 *
 * @param {number} count
 */
export function effective(count) {
  return count < 9.95 ? decimal(count.toFixed(1)) : String(Math.round(count));
}
