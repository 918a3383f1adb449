// What the viewer says, in words and numbers. People count from 1, the code from 0. No DOM here.

import { wordOf } from "./faithfulness.js";
import { ofFeatures } from "./selection.js";
import { decimal, say } from "./words.js";

/** @import { Direction, Fusion, Method, Occlusion, Selection, Setting, TokenLayout, Verdict, View } from "./types" */

/**
 * A rank: "1st", "12th".
 *
 * @param {number} n
 */
export function ordinal(n) {
  const tail = n % 100;
  const suffix = tail >= 11 && tail <= 13 ? "th" : ["th", "st", "nd", "rd"][n % 10] ?? "th";
  return `${n}${suffix}`;
}

/**
 * A share with two significant digits: "31 %", "3.1 %", "0.31 %".
 *
 * @param {number} share
 */
export function percent(share) {
  const p = 100 * share;
  if (p > 0 && p < 0.001) return `< ${ofHundred("0.001")}`;
  if (p >= 99.95) return ofHundred("100");
  return ofHundred(p >= 99.5 ? p.toFixed(1) : p >= 10 ? p.toFixed(0) : p >= 1 ? p.toFixed(1) : p >= 0.1 ? p.toFixed(2) : p > 0 ? p.toFixed(3) : "0");
}

/** @param {string} digits */
function ofHundred(digits) {
  return say("{digits} %", { digits: decimal(digits) });
}

/**
 * A multiple of uniform attention: "12×", "2.7×", "0.31×".
 *
 * @param {number} times
 */
export function multiple(times) {
  if (times >= 9.95) return `${Math.round(times)}×`;
  if (times >= 0.995) return `${decimal(times.toFixed(1))}×`;
  return times >= 0.005 ? `${decimal(times.toFixed(2))}×` : times > 0 ? `< ${decimal("0.01")}×` : "0×";
}

/**
 * A cosine or a correlation: "0.93", "−0.12".
 *
 * @param {number} value
 */
export function signed(value) {
  const digits = Math.abs(value).toFixed(2);
  return (value < 0 && digits !== "0.00" ? "−" : "") + decimal(digits);
}

/**
 * A prefix token, on its chip.
 *
 * @param {string} name
 */
export function chipName(name) {
  if (name === "cls") return say("Class token");
  if (name === "dist") return "Distillation";
  const register = /^reg(\d+)$/.exec(name);
  return register ? say("Register {number}", { number: register[1] }) : name;
}

/**
 * What a token that is not on the picture is for, in words that need no others; "" for one of an unknown name.
 *
 * @param {string} name
 */
export function prefixMeaning(name) {
  if (name === "cls") return say("Belongs to no patch: it gathers from all of them, and models with one read their answer from it");
  if (name === "dist") return "Belongs to no patch: it was trained to answer as a larger model does";
  if (!/^reg\d+$/.test(name)) return "";
  return say("Belongs to no patch: room for notes about the whole picture, which a model otherwise takes from plain patches");
}

/** What the words beside the maps mean, for people who meet them there first. */
export const GLOSSARY = {
  spread: "Over how many tokens the attention is spread: the exponential of its entropy. Entropy of uniform: 0 is a single token, 1 is all alike",
  uniform: "× uniform: times the weight that every token had if attention were spread evenly",
  prefix: "Tokens before the patches, which belong to no place in the picture: the class token gathers the answer, registers hold notes",
  faithful:
    "Random parts of the picture were masked, the same ones for every map. The number is the correlation between what this map gives to the patches of a mask and how far the class drops without them: 1 says it exactly, 0 says nothing. Chance: the map's own copies, shifted and mirrored. Removal map: fitted to these answers, on masks that it was not fitted to",
  cosine: "Cosine of two tokens' features: 1 is the same direction, 0 is unrelated",
};

/**
 * What the number beside a map is about; and of how many masks, while more are measured and it still moves.
 *
 * @param {{ target: string, count: number, complete: boolean }} masks
 */
export function faithfulTitle({ target, count, complete }) {
  return `Faithful to “${target}”${complete ? "" : `, by ${count} masks so far`}`;
}

/**
 * A map's faithfulness; only about, while more masks are measured.
 *
 * @param {number} correlation
 * @param {{ complete: boolean }} masks
 */
export function faithfulness(correlation, { complete }) {
  return `${complete ? "" : "≈ "}${signed(correlation)}`;
}

/**
 * Whether a map is better than chance, and what the removal map reaches.
 *
 * @param {Verdict | undefined} verdict undefined while it is not known
 * @param {{ ceiling: number, complete: boolean }} masks
 */
export function verdictText(verdict, { ceiling, complete }) {
  const word = verdict ? wordOf(verdict) : "…";
  return `${complete ? word.replace(" yet", "") : word} · removal map ${signed(ceiling)}`;
}

/**
 * What a method's map shows, what the method does, and where another is chosen.
 *
 * @param {Method} method
 */
export function methodMeaning(method) {
  const words = method.sentence ? ` ${method.sentence}` : "";
  return `${capital(purpose(method))}.${words} Choose ${method.target ? "class and method" : "another"} above`;
}

/**
 * Where a patch lies.
 *
 * @param {TokenLayout} layout
 * @param {number} token
 */
export function position(layout, token) {
  const patch = token - layout.split;
  return say("row {row}, col {col}", { row: Math.floor(patch / layout.cols) + 1, col: (patch % layout.cols) + 1 });
}

/**
 * A token within a sentence.
 *
 * @param {TokenLayout} layout
 * @param {number} token
 */
export function tokenName(layout, token) {
  if (token >= layout.split) return say("patch ({where})", { where: position(layout, token) });
  const name = layout.prefix[token];
  if (name === "cls") return say("the class token");
  if (name === "dist") return "the distillation token";
  const register = /^reg(\d+)$/.exec(name);
  return register ? say("register {number}", { number: register[1] }) : `the ${name} token`;
}

/** @type {{ name: Setting, initial: number | string, describe: (value: any) => string }[]} */
const SETTINGS = [
  { name: "start_block", initial: 0, describe: (value) => `from block ${value + 1} on` },
  { name: "residual", initial: 0.5, describe: (value) => `${Math.round(100 * value)} % staying` },
  { name: "fusion", initial: "mean", describe: (value) => `${value} of heads` },
  { name: "discard", initial: 0, describe: (value) => `weakest ${Math.round(100 * value)} % left out` },
];

/**
 * Settings of a method that are not as usual, to stand behind its name.
 *
 * @param {Setting[]} names of those that it knows
 * @param {Selection} selection
 */
export function settingsText(names, selection) {
  const changed = SETTINGS.filter(({ name, initial }) => names.includes(name) && selection[name] !== initial);
  return changed.length ? ` (${changed.map(({ name, describe }) => describe(selection[name])).join(", ")})` : "";
}

/**
 * What a method's map shows where it is asked about no token.
 *
 * @param {Method} method
 */
export function purpose({ target }) {
  return target ? `what speaks for “${target}”` : "what the answer is read from";
}

/**
 * One plain sentence for the map on the picture.
 *
 * @param {TokenLayout} layout
 * @param {object} shown
 * @param {View} shown.view
 * @param {Direction} shown.direction
 * @param {number | Fusion} shown.block
 * @param {number | Fusion} shown.head
 * @param {number} shown.token that it is about, -1 for none
 * @param {Method | null} shown.method of the view "relevance"
 * @param {string} shown.settings from settingsText
 * @param {string} shown.after from afterBlock
 */
export function sentence(layout, { view, direction, block, head, token, method, settings, after }) {
  const name = tokenName(layout, Math.max(token, 0));
  const to = direction === "to";
  if (view === "relevance" && method) {
    const title = `${method.title}${settings}`;
    if (token < 0) return `${title}: ${purpose(method)}.`;
    const of = method.target && ` for “${method.target}”`;
    return `${title}${of}: ${to ? `which tokens drew on ${name}` : `what ${name} drew on`}.`;
  }
  if (view === "rollout")
    {
    const what = to ? "Rollout through all blocks{settings}: which tokens {name} reaches." : "Rollout through all blocks{settings}: what {name} is made of.";
    return say(what, { settings, name });
  }
  if (view === "similar") return `Patches most like ${name}, by their features after ${after}.`;
  if (view === "components") return `Components of the features after ${after} as colours; outlined, patches most like ${name}.`;
  if (view === "pool") return `Pooling query after the last block, ${headName(head)}: where it looks.`;
  return say(to ? "{map}: who looks at {name}." : "{map}: where {name} looks.", { map: mapName(block, head), name });
}

/**
 * What is shown where a token of another picture is looked for.
 *
 * @param {TokenLayout} layout of that picture
 * @param {number} token
 * @param {string} after from afterBlock
 */
export function matchesSentence(layout, token, after) {
  const name = tokenName(layout, token);
  return `Patches most like ${name} of the other picture, after ${after}; a double line: each is the other's best.`;
}

/**
 * A block whose output is compared.
 *
 * @param {number} block
 * @param {number} blocks
 */
export function afterBlock(block, blocks) {
  return block === blocks - 1 ? "the last block" : `block ${block + 1}`;
}

/**
 * Which of all maps of a token.
 *
 * @param {number | Fusion} block
 * @param {number | Fusion} head
 */
function mapName(block, head) {
  const heads = headName(head);
  if (typeof block === "number") return say("Block {block}, {heads}", { block: block + 1, heads });
  const fusion = say(block);
  if (typeof head === "number") return say("Head {head}, {fusion} of blocks", { head: head + 1, fusion });
  return block === head ? say("{Fusion} of all blocks and heads", { Fusion: capital(fusion) }) : say("{Fusion} of blocks, {heads}", { Fusion: capital(fusion), heads });
}

/** @param {number | Fusion} head */
function headName(head) {
  return typeof head === "string" ? say("{fusion} of heads", { fusion: say(head) }) : say("head {head}", { head: head + 1 });
}

/**
 * What becomes of the answer when a patch is replaced.
 *
 * @param {Occlusion} occlusion
 * @param {number} patch
 * @param {string} where
 */
export function occlusionText({ target, before, after, answers }, patch, where) {
  const points = 100 * (after[patch] - before);
  const change = `${points < 0 ? "−" : "+"}${Math.abs(points).toFixed(1)} points`;
  const answer = answers[patch] ? ` The answer becomes “${answers[patch]}”.` : "";
  return `Without the patch (${where}): “${target}” ${percent(after[patch])} (${change}).${answer}`;
}

/**
 * What the colours of a map mean.
 *
 * @param {object} payload
 * @param {number} payload.tokens
 * @param {unknown} payload.pool truthy where the model has a pooling query
 * @param {View} view
 * @param {Selection["scale"]} scale
 * @param {number} low
 * @param {number} top
 * @param {boolean} shared a map of the same kind beside it has the same colours
 * @param {boolean} [whole] the map shares out 100 %
 */
export function legendText({ tokens, pool }, view, scale, low, top, shared, whole = true) {
  const alone = "Colours of two maps cannot be compared.";
  if (view === "components") return "Red, green and blue: the three directions in which the features of the patches differ most. Black patches are far longer than the others and carry no content.";
  if (view === "similar")
    return scale === "own"
      ? `This map alone: from its least similar patch, ${signed(low)}, to its most similar other one, ${signed(top)}. ${alone}`
      : "One scale for every patch: a cosine of 1 is the same direction, 0 is unrelated; below 0 has the colour of 0.";
  const ends =
    say("it ends at {top}: the strongest patch of every second head stays below, stronger ones share the last colour. Tokens that are not patches do not count.", { top: percent(top) });
  const other = say("it ends at the strongest patch other than the token itself, {top}.", { top: percent(top) });
  const both = shared && scale !== "own";
  const reach =
    view === "relevance" ? `${both ? "One scale for both maps" : "This map alone"}${whole ? ", in shares of all its weight" : ""}: ${other}`
    : view === "rollout" ? both ? `One scale for both rollouts: ${other}` : say("This rollout alone: {other}", { other })
    : scale === "own" ? say("This map alone: it ends at its strongest patch, {top}. Colours of two maps cannot be compared.", { top: percent(top) })
    : view === "pool" ? `One scale for every head of the pooling query: ${ends}`
    : pool ? `One scale for every block and head; the pooling query has another. For this query ${ends}`
    : say("One scale for every block and head. For this query {ends}", { ends });
  return `${reach} ${say("Uniform attention is 1/{tokens} = {share}.", { tokens, share: percent(1 / tokens) })}`;
}

/**
 * How much of what tells patches apart the colours of components show.
 *
 * @param {{ shares: number[], pictures: number }} features
 */
export function sharesText({ shares, pictures }) {
  const [red, green, blue] = shares.map(percent);
  const whose = pictures > 1 ? `the patches of ${pictures} pictures` : "the patches";
  return `Red ${red}, green ${green}, blue ${blue} of how ${whose} differ`;
}

/**
 * Why there is no map.
 *
 * @param {View} view of a map that the server makes
 * @param {Method | null} method
 * @param {boolean} pinned
 * @param {boolean} alone nobody would compute it
 */
export function waitingText(view, method, pinned, alone) {
  if (alone) return "This map is computed in the app";
  if (ofFeatures(view)) return "Reading the features …";
  if (view === "relevance") return `Computing ${method?.title} …`;
  return pinned ? "Computing the rollout …" : "Click a patch for its rollout";
}

/**
 * Which patches leave the picture clear: those below their mean.
 *
 * @param {View} view
 * @param {number} mean
 */
export function clearText(view, mean) {
  return ` ${say("On the picture, patches below their mean, {mean}, are left clear.", { mean: view === "similar" ? signed(mean) : percent(mean) })}`;
}

/**
 * A word as a sentence begins with it.
 *
 * @param {string} word
 */
export function capital(word) {
  return word[0].toUpperCase() + word.slice(1);
}

/**
 * Up to `most` round numbers from `low` to `top`, evenly spaced, into out; returns how many.
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
 * An effective number of tokens: "1.3", "41".
 *
 * @param {number} count
 */
export function effective(count) {
  return count < 9.95 ? decimal(count.toFixed(1)) : String(Math.round(count));
}
