// What the viewer says, in words and numbers. People count from 1, the code from 0.

const FUSIONS = ["mean", "max", "min"];

function ordinal(n) {
  const tail = n % 100;
  const suffix = tail >= 11 && tail <= 13 ? "th" : ["th", "st", "nd", "rd"][n % 10] ?? "th";
  return `${n}${suffix}`;
}

/** A share with two significant digits: "31 %", "3.1 %", "0.31 %". */
function percent(share) {
  const p = 100 * share;
  if (p >= 99.95) return "100 %";
  if (p >= 10) return `${p.toFixed(p >= 99.5 ? 1 : 0)} %`;
  if (p >= 1) return `${p.toFixed(1)} %`;
  if (p >= 0.1) return `${p.toFixed(2)} %`;
  if (p >= 0.001) return `${p.toFixed(3)} %`;
  return p > 0 ? "< 0.001 %" : "0 %";
}

/** A multiple of uniform attention: "12×", "2.7×", "0.31×". */
function multiple(times) {
  if (times >= 9.95) return `${Math.round(times)}×`;
  if (times >= 0.995) return `${times.toFixed(1)}×`;
  return times >= 0.005 ? `${times.toFixed(2)}×` : times > 0 ? "< 0.01×" : "0×";
}

/** A cosine: "0.93", "−0.12". */
function cosine(value) {
  const digits = Math.abs(value).toFixed(2);
  return value < 0 && digits !== "0.00" ? `−${digits}` : digits;
}

function prefixName(name) {
  if (name === "cls") return "class token";
  if (name === "dist") return "distillation token";
  const register = /^reg(\d+)$/.exec(name);
  return register ? `register ${register[1]}` : `${name} token`;
}

function chipName(name) {
  const known = { cls: "Class token", dist: "Distillation" }[name];
  const register = /^reg(\d+)$/.exec(name);
  return known ?? (register ? `Register ${register[1]}` : name);
}

function place(payload, token) {
  const patch = token - payload.split;
  return `row ${Math.floor(patch / payload.cols) + 1}, col ${(patch % payload.cols) + 1}`;
}

function tokenName(payload, token) {
  if (token >= payload.split) return `patch (${place(payload, token)})`;
  const name = prefixName(payload.prefix[token]);
  return /^register/.test(name) ? name : `the ${name}`;
}

/** Settings of a method that are not as usual, to stand behind its name. */
function settingsText(names, selection) {
  const usual = { residual: 0.5, fusion: "mean", discard: 0, start_block: 0 };
  const words = {
    start_block: (value) => `from block ${value + 1} on`,
    residual: (value) => `${Math.round(100 * value)} % staying`,
    fusion: (value) => `${value} of heads`,
    discard: (value) => `weakest ${Math.round(100 * value)} % left out`,
  };
  const said = Object.keys(words)
    .filter((name) => names.includes(name) && selection[name] !== usual[name])
    .map((name) => words[name](selection[name]));
  return said.length ? ` (${said.join(", ")})` : "";
}

/** One plain sentence for the map on the picture; `set` from settingsText. */
function sentence(payload, view, direction, block, head, token, method, set) {
  if (view === "relevance" && token < 0) return `${method.title}${set}: what speaks for “${method.target}”.`;
  const name = tokenName(payload, Math.max(token, 0));
  if (view === "relevance")
    return `${method.title}${set} for “${method.target}”: ${direction === "to" ? `which tokens drew on ${name}` : `what ${name} drew on`}.`;
  if (view === "rollout")
    return `Rollout through all blocks${set}: ${direction === "to" ? `which tokens ${name} reaches` : `what ${name} is made of`}.`;
  if (view === "similar") return `Patches most like ${name}, by their features after the last block.`;
  if (view === "pool")
    return `Pooling query after the last block, ${typeof head === "string" ? `${head} of heads` : `head ${head + 1}`}: where it looks.`;
  const where =
    typeof block === "string"
      ? typeof head === "string"
        ? block === head ? `${capital(block)} of all blocks and heads` : `${capital(block)} of blocks, ${head} of heads`
        : `Head ${head + 1}, ${block} of blocks`
      : typeof head === "string" ? `Block ${block + 1}, ${head} of heads` : `Block ${block + 1}, head ${head + 1}`;
  return `${where}: ${direction === "to" ? `who looks at ${name}` : `where ${name} looks`}.`;
}

/** What becomes of the answer when a patch is replaced. */
function probeText({ target, before, after, answers }, patch, where) {
  const points = 100 * (after[patch] - before);
  const change = `${points < 0 ? "−" : "+"}${Math.abs(points).toFixed(1)} points`;
  const answer = answers[patch] ? ` The answer becomes “${answers[patch]}”.` : "";
  return `Without the patch (${where}): “${target}” ${percent(after[patch])} (${change}).${answer}`;
}

/** What the colours of a map mean; `shared` where a map of the same kind beside it has the same colours. */
function legendText(payload, view, scale, low, top, shared) {
  const { tokens, pool } = payload;
  const alone = "Colours of two maps cannot be compared.";
  if (view === "similar")
    return scale === "own"
      ? `This map alone: from its least similar patch, ${cosine(low)}, to its most similar other one, ${cosine(top)}. ${alone}`
      : "One scale for every patch: a cosine of 1 is the same direction, 0 is unrelated; below 0 has the colour of 0.";
  const ends =
    `it ends at ${percent(top)}: the strongest patch of every second head stays below, ` +
    "stronger ones share the last colour. Tokens that are not patches do not count.";
  const both = shared && scale !== "own";
  const reach =
    view === "relevance" ? `${both ? "One scale for both maps" : "This map alone"}, in shares of all its weight: it ends at the strongest patch other than the token itself, ${percent(top)}.`
    : view === "rollout" ? `${both ? "One scale for both rollouts" : "This rollout alone"}: it ends at the strongest patch other than the token itself, ${percent(top)}.`
    : scale === "own" ? `This map alone: it ends at its strongest patch, ${percent(top)}. ${alone}`
    : view === "pool" ? `One scale for every head of the pooling query: ${ends}`
    : `One scale for every block and head${pool ? "; the pooling query has another" : ""}. For this query ${ends}`;
  return `${reach} Uniform attention is 1/${tokens} = ${percent(1 / tokens)}.`;
}

/** Which patches leave the picture clear: those below their mean. */
function clearText(view, mean) {
  return ` On the picture, patches below their mean, ${view === "similar" ? cosine(mean) : percent(mean)}, are left clear.`;
}

function capital(word) {
  return word[0].toUpperCase() + word.slice(1);
}

/** Up to `most` round numbers from `low` to `top`, evenly spaced, into out; returns how many. */
function roundTicks(low, top, most, out) {
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

/** An effective number of tokens: "1.3", "41". */
function effective(count) {
  return count < 9.95 ? count.toFixed(1) : String(Math.round(count));
}
