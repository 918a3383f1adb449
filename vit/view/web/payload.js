// Reads what payload.py packed and computes any row or column of any attention map from it. No DOM here.

const DECODED_BUDGET = 192 * 2 ** 20; // bytes of queries and keys held as float32; beyond, the oldest go

let halves = null;

/** Every float16 as a float32, by its bits. */
function halfTable() {
  if (halves) return halves;
  halves = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    const size =
      exponent === 31 ? (fraction ? NaN : Infinity)
      : exponent === 0 ? fraction * 2 ** -24
      : (1 + fraction / 1024) * 2 ** (exponent - 15);
    halves[bits] = bits & 32768 ? -size : size;
  }
  return halves;
}

function decodeHalves(from, start, out) {
  const table = halfTable();
  for (let i = 0; i < out.length; i++) out[i] = table[from[start + i]];
  return out;
}

/** The header of packed bytes, and a function that finds their sections. */
function opened(bytes) {
  const start = new DataView(bytes.buffer, bytes.byteOffset, 8);
  if (String.fromCharCode(...bytes.subarray(0, 4)) !== "vit1") throw new Error("not a viewer payload");
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + start.getUint32(4, true))));
  const section = (name, Type) => {
    const [offset, length] = header.sections[name];
    return new Type(bytes.buffer, bytes.byteOffset + offset, length / Type.BYTES_PER_ELEMENT);
  };
  return { header, section };
}

class Payload {
  constructor(bytes) {
    const { header, section } = opened(bytes);
    this.header = header;
    this.blocks = header.blocks;
    this.heads = header.heads;
    this.tokens = header.tokens;
    this.prefix = header.prefix;
    this.split = header.prefix.length; // S, where the patches begin
    [this.rows, this.cols] = header.grid;
    this.patches = this.rows * this.cols;
    this.picture = section("picture", Uint8Array);
    this.colormaps = new Map(header.colormaps.map((name) => [name, section(`colormap:${name}`, Uint8Array)]));
    this.attention = header.kind === "maps" ? new Maps(this, section) : new QueriesKeys(this, section);
    this.tops = section("tops", Float32Array);
    this.features = header.sections.features ? new Features(this, section) : null;
    this.pool = header.sections.pool ? section("pool", Float32Array) : null; // (H, N)
    this.poolTop = header.pool_top ?? 0;
    this.lines = this.blocks + (this.pool ? 1 : 0); // of maps: one per block, and one for the pooling query
    this.quick = header.kind === "maps"; // everything can be computed between two frames
  }

  /**
   * Attention of one head from (a row) or to (a column) a token: N numbers into out, beginning at `at`.
   * After the last block comes the pooling query, which is no token.
   */
  fill(block, head, token, direction, out, at) {
    if (block === this.blocks) for (let i = 0, from = head * this.tokens; i < this.tokens; i++) out[at + i] = this.pool[from + i];
    else this.attention.fill(block, head, token, direction === "to", out, at);
  }

  /** Where the colour scale that all blocks and heads share ends for this query. */
  top(token, direction) {
    return this.tops[direction === "to" ? this.tokens + token : token];
  }

  /** Rollout of one token into out (N), with its settings as in tuning.py; only for kind "maps". */
  rollout(token, direction, settings, out) {
    this.attention.rollout(token, direction === "to", settings, out);
  }
}

/** The matrices of a chain through all blocks, as pack_chain in payload.py says. */
class Chain {
  constructor(bytes) {
    const { header, section } = opened(bytes);
    this.blocks = header.blocks;
    this.tokens = header.tokens;
    const numbers = section("matrices", Uint16Array);
    this.matrices = decodeHalves(numbers, 0, new Float32Array(numbers.length)); // (L, N, N)
    this.scales = section("scales", Float32Array); // (L)
    this.start = section("start", Float32Array); // (N)
    this.spare = new Float32Array(this.tokens);
  }

  /**
   * What a token drew on, or for "to" who drew on it, as shares of all into out (N); -1 asks about the class itself.
   * Blocks before `first` are left out.
   */
  trace(token, direction, first, out) {
    const { blocks, tokens, matrices, scales, start, spare } = this;
    const to = direction === "to" && token >= 0;
    if (token < 0) out.set(start);
    else out.fill(0)[token] = 1;
    for (let step = 0; step < blocks - first; step++) {
      const block = to ? first + step : blocks - 1 - step;
      const scale = scales[block];
      spare.fill(0);
      for (let i = 0, at = block * tokens * tokens; i < tokens; i++, at += tokens) {
        if (to) {
          let sum = 0;
          for (let j = 0; j < tokens; j++) sum += matrices[at + j] * out[j];
          spare[i] = sum;
        } else if (out[i] !== 0) for (let j = 0; j < tokens; j++) spare[j] += out[i] * matrices[at + j];
      }
      for (let j = 0; j < tokens; j++) out[j] += scale * spare[j];
    }
    let sum = 0;
    for (let j = 0; j < tokens; j++) sum += out[j] -= token < 0 ? start[j] : j === token ? 1 : 0; // its own part says nothing
    if (sum > 0) for (let j = 0; j < tokens; j++) out[j] /= sum;
  }
}

/** Tokens after the last block, as bytes. */
class Features {
  constructor(payload, section) {
    this.bytes = section("features", Int8Array);
    this.units = section("units", Float32Array);
    this.tokens = payload.tokens;
    this.width = this.bytes.length / payload.tokens; // D
  }

  /** Cosines of one token with every token, into out (N). */
  cosines(token, out) {
    const { bytes, units, tokens, width } = this;
    const even = width - (width % 4);
    const one = token * width;
    for (let j = 0, from = 0; j < tokens; j++, from += width) {
      let a = 0, b = 0; // whole numbers: 127² times a width of 100,000 still fits
      for (let e = 0; e < even; e += 4) {
        a = (a + bytes[one + e] * bytes[from + e] + bytes[one + e + 1] * bytes[from + e + 1]) | 0;
        b = (b + bytes[one + e + 2] * bytes[from + e + 2] + bytes[one + e + 3] * bytes[from + e + 3]) | 0;
      }
      for (let e = even; e < width; e++) a = (a + bytes[one + e] * bytes[from + e]) | 0;
      out[j] = (a + b) * units[token] * units[j];
    }
  }
}

/** All maps at hand, as uint8. */
class Maps {
  constructor(payload, section) {
    this.payload = payload;
    this.maps = section("maps", Uint8Array);
    const prefix = section("prefix", Uint16Array);
    this.prefix = decodeHalves(prefix, 0, new Float32Array(prefix.length));
    this.units = section("scales", Float32Array).map((scale) => scale / 255);
    this.fused = { how: "", maps: null }; // (L, N, N), for rollout
    this.spare = new Float32Array(payload.tokens);
  }

  fill(block, head, token, to, out, at) {
    const { heads, tokens, split, patches } = this.payload;
    const { maps, prefix, units } = this;
    const first = (block * heads + head) * tokens; // row 0 of this map
    if (!to) {
      const row = first + token;
      for (let s = 0; s < split; s++) out[at + s] = prefix[row * split + s];
      const unit = units[row];
      const from = row * patches;
      const into = at + split;
      for (let p = 0; p < patches; p++) out[into + p] = maps[from + p] * unit;
    } else if (token < split) {
      for (let i = 0, from = first * split + token; i < tokens; i++, from += split) out[at + i] = prefix[from];
    } else {
      for (let i = 0, from = first * patches + token - split; i < tokens; i++, from += patches)
        out[at + i] = maps[from] * units[first + i];
    }
  }

  rollout(token, to, settings, out) {
    const { blocks, tokens } = this.payload;
    const { residual } = settings;
    const maps = this.fusedMaps(settings);
    const next = this.spare;
    out.fill(0);
    out[token] = 1;
    for (let step = 0; step < blocks; step++) {
      let at = (to ? step : blocks - 1 - step) * tokens * tokens;
      if (to) {
        for (let i = 0; i < tokens; i++, at += tokens) {
          let sum = 0;
          for (let j = 0; j < tokens; j++) sum += maps[at + j] * out[j];
          next[i] = (1 - residual) * sum + residual * out[i];
        }
      } else {
        for (let j = 0; j < tokens; j++) next[j] = residual * out[j];
        for (let i = 0; i < tokens; i++, at += tokens) {
          const share = (1 - residual) * out[i];
          if (share > 0) for (let j = 0; j < tokens; j++) next[j] += share * maps[at + j];
        }
      }
      out.set(next);
    }
  }

  /** All heads in one, without the weakest patches of each row; rows are made to sum to 1 again. */
  fusedMaps({ fusion, discard }) {
    const how = `${fusion} ${discard}`;
    if (this.fused.how === how) return this.fused.maps;
    const { blocks, heads, tokens, split, patches } = this.payload;
    const maps = this.fused.maps ?? new Float32Array(blocks * tokens * tokens);
    const one = this.spare, weakest = Math.floor(discard * patches), order = new Float32Array(patches);
    for (let block = 0; block < blocks; block++)
      for (let i = 0; i < tokens; i++) {
        const from = (block * tokens + i) * tokens;
        const row = maps.subarray(from, from + tokens);
        this.fill(block, 0, i, false, row, 0);
        for (let head = 1; head < heads; head++) {
          this.fill(block, head, i, false, one, 0);
          if (fusion === "mean") for (let j = 0; j < tokens; j++) row[j] += one[j];
          else if (fusion === "max") for (let j = 0; j < tokens; j++) row[j] = Math.max(row[j], one[j]);
          else for (let j = 0; j < tokens; j++) row[j] = Math.min(row[j], one[j]);
        }
        if (weakest) {
          order.set(row.subarray(split));
          const limit = order.sort()[weakest - 1];
          let equal = weakest; // of those at the limit, as many go as it takes
          for (let j = 0; j < patches && order[j] < limit; j++) equal--;
          for (let j = split; j < tokens; j++) if (row[j] < limit || (row[j] === limit && equal-- > 0)) row[j] = 0;
        }
        let sum = 0;
        for (let j = 0; j < tokens; j++) sum += row[j];
        if (sum > 0) for (let j = 0; j < tokens; j++) row[j] /= sum;
      }
    this.fused = { how, maps };
    return maps;
  }
}

/** Queries and keys at hand; a row or column is a product with one of them. */
class QueriesKeys {
  constructor(payload, section) {
    this.payload = payload;
    this.width = payload.header.width;
    this.halves = [section("queries", Uint16Array), section("keys", Uint16Array)];
    this.logSums = section("log_sums", Float32Array);
    this.size = payload.heads * payload.tokens * this.width; // of one block's queries
    this.decoded = [new Array(payload.blocks).fill(null), new Array(payload.blocks).fill(null)];
    this.used = [new Float64Array(payload.blocks), new Float64Array(payload.blocks)];
    this.room = Math.max(2, Math.floor(DECODED_BUDGET / (4 * this.size)));
    this.held = 0;
    this.clock = 0;
    this.one = new Float32Array(this.width);
  }

  fill(block, head, token, to, out, at) {
    const { heads, tokens } = this.payload;
    const { width, one, logSums } = this;
    const many = this.block(to ? 0 : 1, block);
    const sums = (block * heads + head) * tokens;
    decodeHalves(this.halves[to ? 1 : 0], (sums + token) * width, one);
    const even = width - (width % 4);
    let from = head * tokens * width;
    for (let j = 0; j < tokens; j++, from += width) {
      let a = 0, b = 0, c = 0, d = 0;
      for (let e = 0; e < even; e += 4) {
        a += one[e] * many[from + e];
        b += one[e + 1] * many[from + e + 1];
        c += one[e + 2] * many[from + e + 2];
        d += one[e + 3] * many[from + e + 3];
      }
      for (let e = even; e < width; e++) a += one[e] * many[from + e];
      out[at + j] = Math.exp(a + b + (c + d) - logSums[sums + (to ? j : token)]);
    }
  }

  /** Queries (0) or keys (1) of a block as float32. */
  block(which, block) {
    const row = this.decoded[which];
    if (!row[block]) {
      const room = this.held < this.room ? new Float32Array(this.size) : this.evict();
      row[block] = decodeHalves(this.halves[which], block * this.size, room);
      this.held += 1;
    }
    this.used[which][block] = ++this.clock;
    return row[block];
  }

  evict() {
    let which = 0, block = -1;
    for (let w = 0; w < 2; w++)
      for (let b = 0; b < this.payload.blocks; b++)
        if (this.decoded[w][b] && (block < 0 || this.used[w][b] < this.used[which][block])) [which, block] = [w, b];
    const freed = this.decoded[which][block];
    this.decoded[which][block] = null;
    this.held -= 1;
    return freed;
  }
}
