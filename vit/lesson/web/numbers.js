// One head in numbers: the computation between two tokens, from query and key to the block's output.

import { percent, tokenName } from "../../view/web/captions.js";
import { translate } from "../../view/web/words.js";
import { element, make } from "./elements.js";
import { Strip, number } from "./strip.js";

/** @import { TokenLayout } from "../../view/web/types" */
/** @import { Trace } from "./trace.js" */

const STRONGEST = 6; // number of keys in the list

/** @typedef {{ block: number, head: number, token: number, other: number }} Subject */

/** The numbers below the map. */
export class Numbers {
  /**
   * @param {(token: number) => void} onSelect called with the key token that the user selects
   */
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.channel = 0;
    /** @type {Trace | null} */
    this.trace = null;
    const point = (/** @type {number} */ channel) => this.point(channel);
    this.heads = ["query", "key", "product"].map((name) => new Strip(translate(`numbers.${name}`), point));
    this.values = ["value", "mixed"].map((name) => new Strip(translate(`numbers.${name}`), (channel) => this.readChannel(this.values, channel, "read")));
    this.stream = ["x", "attention adds", "mlp adds", "out"].map((name) => new Strip(translate(`numbers.${name}`), (channel) => this.readChannel(this.stream, channel, "read")));
    this.neurons = [new Strip(translate("numbers.neurons"), (channel) => this.readChannel(this.neurons, channel, "read"))];
    this.keys = make("ol", { className: "keys-list" });
    this.lines = ["subject", "product", "score", "softmax", "values", "stream", "mlp"].map((name) => /** @type {const} */ ([name, make("p", { className: "line" })]));
    const line = new Map(this.lines);
    const at = (/** @type {string} */ name) => /** @type {HTMLElement} */ (line.get(name));
    this.line = at;
    /** @type {(name: string, ...parts: HTMLElement[]) => HTMLElement} */
    const stage = (name, ...parts) => make("section", { className: "stage-of-head" }, make("h3", { textContent: translate(`numbers.${name}.title`) }), make("p", { textContent: translate(`numbers.${name}.text`) }), ...parts);
    element(".numbers .content").replaceChildren(
      at("subject"),
      stage("scores", ...this.heads.map(({ root }) => root), at("product"), at("score")),
      stage("shares", this.keys, at("softmax")),
      stage("mix", ...this.values.map(({ root }) => root), at("values")),
      stage("residual", ...this.stream.map(({ root }) => root), at("stream")),
      stage("neurons", ...this.neurons.map(({ root }) => root), at("mlp")),
    );
  }

  /**
   * @param {Trace} trace
   * @param {Subject} subject
   * @param {TokenLayout} layout
   */
  draw(trace, { block, head, token, other }, layout) {
    this.trace = trace;
    const name = (/** @type {number} */ one) => tokenName(layout, one);
    const width = trace.query.length;
    this.line("subject").textContent = translate("numbers.subject", { block: block + 1, head: head + 1, asks: name(token), answers: name(other) });
    const largest = (/** @type {Float32Array[]} */ ...all) => Math.max(1e-30, ...all.map((values) => values.reduce((top, value) => Math.max(top, Math.abs(value)), 0)));
    const both = largest(trace.query, trace.key);
    this.heads[0].draw(trace.query, both);
    this.heads[1].draw(trace.key, both);
    this.heads[2].draw(trace.products);
    const sum = trace.products.reduce((total, value) => total + value, 0);
    this.line("score").textContent = translate("numbers.score", { width, sum: number(sum), root: number(Math.sqrt(width)), score: number(trace.scores[other]) });

    this.drawKeys(trace, other, name);
    const most = Math.max(...trace.scores);
    const powers = trace.scores.reduce((total, score) => total + Math.exp(score - most), 0);
    this.line("softmax").textContent = translate("numbers.softmax", { power: number(Math.exp(trace.scores[other] - most)), sum: number(powers), tokens: trace.scores.length, share: percent(trace.weights[other]) });

    this.values[0].draw(trace.value);
    this.values[1].draw(trace.mixed);
    this.line("values").textContent = translate("numbers.values", { share: percent(trace.weights[other]), name: name(other) });
    const wide = largest(trace.x, trace.out);
    [trace.x, trace.attentionAdds, trace.mlpAdds, trace.out].forEach((values, i) => this.stream[i].draw(values, wide));
    const length = (/** @type {Float32Array} */ values) => number(Math.hypot(...values));
    this.line("stream").textContent = translate("numbers.stream", { before: length(trace.x), heads: length(trace.attentionAdds), head: length(trace.headAdds), mlp: length(trace.mlpAdds), after: length(trace.out) });
    this.neurons[0].draw(trace.neurons);
    const awake = trace.neurons.filter((value) => value > 0).length;
    const strongest = trace.neurons.indexOf(Math.max(...trace.neurons));
    this.line("mlp").textContent = translate("numbers.mlp", { awake, neurons: trace.neurons.length, strongest: strongest + 1, value: number(trace.neurons[strongest]) });
    this.point(Math.min(this.channel, width - 1));
  }

  /**
   * Draw buttons for the strongest keys.
   *
   * @param {Trace} trace
   * @param {number} other
   * @param {(token: number) => string} name
   */
  drawKeys({ scores, weights }, other, name) {
    const order = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, STRONGEST);
    if (!order.includes(other)) order.push(other);
    const focused = this.keys.contains(document.activeElement);
    this.keys.replaceChildren(
      ...order.map((token) => {
        const bar = make("i");
        bar.style.width = `${(100 * weights[token]) / weights[order[0]]}%`;
        const button = make("button", { type: "button" }, make("span", { textContent: name(token) }), make("data", { textContent: number(scores[token]) }), make("b", { textContent: percent(weights[token]) }), make("div", { className: "bar" }, bar));
        button.setAttribute("aria-pressed", String(token === other));
        button.addEventListener("click", () => this.onSelect(token));
        return make("li", {}, button);
      }),
    );
    if (focused) /** @type {HTMLElement | null} */ (this.keys.querySelector("[aria-pressed=true]"))?.focus();
  }

  /**
   * Select a channel of query, key and product.
   *
   * @param {number} channel
   */
  point(channel) {
    const { trace, heads } = this;
    if (!trace) return;
    this.channel = Math.min(Math.max(channel, 0), trace.query.length - 1);
    for (const strip of heads) strip.point(this.channel);
    const [query, key, product] = [trace.query, trace.key, trace.products].map((values) => number(values[this.channel]));
    this.line("product").textContent = translate("numbers.channel", { channel: this.channel + 1, query, key, product });
  }

  /**
   * Select a channel of several strips and show its values below them.
   *
   * @param {Strip[]} strips
   * @param {number} channel
   * @param {string} className class of the line that shows the values
   */
  readChannel(strips, channel, className) {
    const each = Math.min(Math.max(channel, 0), strips[0].values.length - 1);
    for (const strip of strips) strip.point(each);
    const { root } = strips[strips.length - 1];
    const line = root.nextElementSibling?.matches(`.${className}`) ? root.nextElementSibling : make("p", { className });
    line.textContent = `${translate("numbers.at", { channel: each + 1 })} ${strips.map(({ label, values }) => `${label} ${number(values[each])}`).join(" · ")}`;
    root.after(line);
  }
}
