// What people do, by pointer, touch and keys. Nothing leaves the browser but choices: a click or a settled key.

const SETTLE = 300; // ms after the last key until Python hears of it

const viewers = new WeakMap(); // parentElement: Instrument

class Instrument extends Viewer {
  constructor(parent) {
    super(parent);
    this.listen();
  }

  listen() {
    const { over, gridCanvas } = this;
    over.addEventListener("pointermove", (event) => {
      if (this.stroke !== null) return this.paintPatch(event);
      if (event.pointerType !== "touch" || this.touching) this.point(this.tokenAt(event), event);
    });
    over.addEventListener("pointerleave", () => !this.touching && this.leave());
    over.addEventListener("pointerdown", (event) => {
      if (this.painting && event.button === 0) return this.beginStroke(event);
      if (event.pointerType !== "touch") return;
      this.touching = true;
      this.tapped = this.tokenAt(event);
      this.point(this.tapped, event);
    });
    over.addEventListener("pointerup", (event) => {
      if (this.stroke !== null) return this.endStroke();
      if (!this.touching) return;
      this.touching = false;
      const token = this.tokenAt(event);
      this.hovered = -1;
      if (token === this.tapped) this.togglePin(token);
      else this.pin(token);
    });
    over.addEventListener("pointercancel", () => {
      if (this.stroke !== null) return this.endStroke();
      this.touching = false;
      this.leave();
    });
    over.addEventListener("click", (event) => {
      if (this.painting) return;
      if (event.pointerType !== "touch") this.togglePin(this.tokenAt(event), event);
    });
    over.addEventListener("keydown", (event) => this.key(event));
    this.root.addEventListener("keydown", (event) => event.key === "Escape" && this.release());
    over.addEventListener("blur", () => this.leave());

    gridCanvas.addEventListener("pointermove", (event) => {
      if (event.pointerType === "touch") return;
      const cell = this.cellAt(event);
      if (this.preview?.r === cell.r && this.preview?.c === cell.c) return;
      this.preview = cell;
      this.act(event);
    });
    gridCanvas.addEventListener("pointerleave", () => {
      this.preview = null;
      this.act();
    });
    gridCanvas.addEventListener("click", (event) => {
      const { r, c } = this.cellAt(event);
      this.choose(r, c);
      this.commit();
    });
    gridCanvas.addEventListener("keydown", (event) => this.gridKey(event));

    for (const [name, field] of [["blocks", "block"], ["heads", "head"]])
      this.find(`.fusion.${name} select`).addEventListener("change", (event) => {
        const pool = field === "head" && this.selection.view === "pool";
        this.change({ [field]: event.target.value, view: pool ? "pool" : "attention" });
      });
    for (const group of this.root.querySelectorAll(".switch"))
      group.addEventListener("click", (event) => {
        const value = event.target.closest("button")?.dataset.value;
        if (value) this.change({ [group.dataset.field]: value });
      });
    for (const field of ["colormap", "cover", "contour"])
      this.find(`[data-field=${field}]`).addEventListener("change", (event) => this.change({ [field]: event.target.value }));
    const opacity = this.find("[data-field=opacity]");
    opacity.addEventListener("input", () => {
      this.selection.opacity = Number(opacity.value);
      this.request();
    });
    this.find("[data-field=paint]").addEventListener("change", () => over.classList.toggle("painted", this.painting));
    this.find(".unhide").addEventListener("click", () => this.change({ hidden: [] }));
    this.find(".swap").addEventListener("click", () => {
      const hidden = new Set(this.selection.hidden);
      this.change({ hidden: [...Array(this.payload.patches).keys()].filter((patch) => !hidden.has(patch)) });
    });
    opacity.addEventListener("change", () => this.change({ opacity: Number(opacity.value) }));
    for (const name of SHARES) {
      const slider = this.find(`[data-field=${name}]`);
      slider.addEventListener("input", () => {
        this.selection[name] = Number(slider.value);
        this.reflectShares();
        this.act();
      });
      slider.addEventListener("change", () => this.change({ [name]: Number(slider.value) }));
    }
    this.find("[data-field=fusion]").addEventListener("change", (event) => this.change({ fusion: event.target.value }));
    this.find("[data-field=start_block]").addEventListener("change", (event) => {
      const block = Math.round(Number(event.target.value)) || 1;
      this.change({ start_block: Math.min(Math.max(block, 1), this.payload.blocks) - 1 });
    });
    this.find("[data-field=smooth]").addEventListener("change", (event) => this.change({ smooth: event.target.checked }));
    this.find("[data-field=lines]").addEventListener("change", (event) => (this.find(".lines").hidden = !event.target.checked));
  }

  tokenAt(event) {
    const { rows, cols, split } = this.payload;
    const area = this.over.getBoundingClientRect();
    const part = (at, start, size, count) => Math.min(Math.max(Math.floor(((at - start) / size) * count), 0), count - 1);
    return split + part(event.clientY, area.top, area.height, rows) * cols + part(event.clientX, area.left, area.width, cols);
  }

  cellAt(event) {
    const area = this.gridCanvas.getBoundingClientRect();
    const x = ((event.clientX - area.left) / area.width) * this.mosaic.width;
    const y = ((event.clientY - area.top) / area.height) * this.mosaic.height;
    return { r: this.mosaic.row(y), c: this.mosaic.column(x) };
  }

  /** The pointer is on a token: it becomes the query or, when the query is held, the key that is read. */
  point(token, event) {
    const held = !this.touching && (this.selection.pinned || this.fixed);
    const field = held ? "readKey" : "hovered";
    if (this[field] === token) return;
    this[field] = token;
    this.act(event);
  }

  /** Dragging hides patches from the model, or shows them again. */
  get painting() {
    return !this.find(".painting").hidden && this.find("[data-field=paint]").checked;
  }

  beginStroke(event) {
    event.preventDefault();
    this.over.setPointerCapture(event.pointerId);
    this.stroke = !this.selection.hidden.includes(this.tokenAt(event) - this.payload.split);
    this.paintPatch(event);
  }

  paintPatch(event) {
    const { selection } = this;
    const patch = this.tokenAt(event) - this.payload.split;
    if (selection.hidden.includes(patch) === this.stroke) return;
    const others = selection.hidden.filter((other) => other !== patch);
    selection.hidden = (this.stroke ? [...others, patch] : others).sort((a, b) => a - b);
    this.cover();
  }

  endStroke() {
    this.stroke = null;
    this.commit();
  }

  leave() {
    if (this.hovered < 0 && this.readKey < 0) return;
    this.hovered = this.readKey = -1;
    this.act();
  }

  pin(token) {
    Object.assign(this.selection, { token, pinned: true, view: this.viewOfTokens });
    this.readKey = -1;
    this.commit();
  }

  release() {
    const { selection } = this;
    if (selection.view === "pool") return this.change({ view: "attention" });
    if (!selection.pinned && this.hovered < 0) return;
    const pinned = selection.pinned;
    Object.assign(selection, { token: pinned ? this.home : selection.token, pinned: false });
    this.hovered = this.readKey = -1;
    if (pinned) this.commit();
    else this.act();
  }

  /** A click, a tap or Enter on a token. */
  togglePin(token, event) {
    const { selection } = this;
    if (!selection.pinned || selection.token !== token || selection.view === "pool") return this.pin(token);
    this.release();
    if (event?.pointerType === "mouse" || event?.pointerType === "pen") this.hovered = token; // it is still there
  }

  choose(r, c) {
    const map = r > this.payload.blocks ? { view: "pool" } : { block: this.blockOf(r), view: "attention" };
    Object.assign(this.selection, map, { head: this.headOf(c) });
    this.reflect();
    this.request();
  }

  change(values) {
    Object.assign(this.selection, values);
    this.commit();
  }

  /** Paint what was chosen, then tell Python. */
  commit(after = 0) {
    this.reflect();
    this.act();
    this.speak();
    chosen.set(this.name, { revision: this.revision, selection: { ...this.selection } });
    clearTimeout(this.settling);
    this.untold = true;
    const tell = () =>
      requestAnimationFrame(() =>
        setTimeout(() => {
          this.untold = false;
          const now = JSON.stringify(this.selection);
          if (now !== this.sent) this.send({ ...this.selection, revision: this.revision });
          this.sent = now;
        }),
      );
    if (after) this.settling = setTimeout(tell, after);
    else tell();
  }

  /** Say the sentence to screen readers, once things are still. */
  speak() {
    clearTimeout(this.speaking);
    this.speaking = setTimeout(() => {
      const [label, place, detail] = this.readings[2];
      write(this.find(".live"), `${this.find(".sentence").textContent} ${label.textContent} ${place.textContent}, ${detail.textContent}.`);
    }, SETTLE);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { selection } = this;
    const { r, c } = this.cellOfSelection();
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const act = {
      ArrowLeft: () => this.move(0, -1),
      ArrowRight: () => this.move(0, 1),
      ArrowUp: () => this.move(-1, 0),
      ArrowDown: () => this.move(1, 0),
      PageUp: () => this.step(r - 1, c),
      PageDown: () => this.step(r + 1, c),
      Home: () => this.step(r, c - 1),
      End: () => this.step(r, c + 1),
      "[": () => this.step(r, c - 1),
      "]": () => this.step(r, c + 1),
      Enter: () => (selection.pinned ? this.release() : this.pin(this.query)),
      " ": () => (selection.pinned ? this.release() : this.pin(this.query)),
      Escape: () => this.release(),
      c: () => {
        this.hovered = -1;
        this.home = Math.max(0, this.payload.prefix.indexOf("cls"));
        this.change({ token: this.home, pinned: false, view: this.viewOfTokens });
      },
      d: () => this.directed && this.change({ direction: selection.direction === "to" ? "from" : "to" }),
      r: () => this.turn("rollout"),
      m: () => this.method && this.turn("relevance"),
      n: () => this.payload.features && this.turn("similar"),
      p: () => this.payload.pool && this.turn("pool"),
      s: () => this.change({ scale: selection.scale === "own" ? "shared" : "own" }),
    }[key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation(); // C and R mean something to Streamlit too
    act();
  }

  /** To a view, or back to attention. */
  turn(view) {
    this.change({ view: this.selection.view === view ? "attention" : view });
  }

  gridKey(event) {
    const { r, c } = this.cellOfSelection();
    const to = { ArrowLeft: [r, c - 1], ArrowRight: [r, c + 1], ArrowUp: [r - 1, c], ArrowDown: [r + 1, c] }[event.key];
    if (!to || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    this.step(...to);
  }

  /** Move the query by patches; from a prefix token it enters the picture in the middle. */
  move(down, right) {
    const { rows, cols, split } = this.payload;
    const patch = this.query - split;
    let row = rows >> 1, col = cols >> 1;
    if (patch >= 0) {
      row = Math.min(Math.max(Math.floor(patch / cols) + down, 0), rows - 1);
      col = Math.min(Math.max((patch % cols) + right, 0), cols - 1);
    }
    const token = split + row * cols + col;
    if (this.selection.pinned || this.fixed) {
      Object.assign(this.selection, { token, pinned: true, view: this.viewOfTokens });
      this.commit(SETTLE);
    } else {
      this.hovered = token;
      this.act();
      this.speak();
    }
  }

  step(r, c) {
    if (r < 0 || c < 0 || r > this.payload.lines || c > this.payload.heads) return;
    this.choose(r, c);
    this.commit(SETTLE);
  }
}

export default ({ data, parentElement, setStateValue }) => {
  let viewer = viewers.get(parentElement);
  if (!viewer) viewers.set(parentElement, (viewer = new Instrument(parentElement)));
  viewer.update(data, (selection) => setStateValue("selection", selection));
  return () => {
    viewer.destroy();
    viewers.delete(parentElement);
  };
};
