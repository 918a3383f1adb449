// A grid of buttons, one per head; rows are blocks. Text is set as textContent, never as HTML.

/** @import { Mount } from "../../vit/view/web/types" */
/** @typedef {ReturnType<typeof build>} Grid */
/** @typedef {{ color: string, text: string, marked: boolean }} Cell */

/** @type {WeakMap<HTMLElement, Grid>} */
const GRIDS = new WeakMap();

/**
 * @param {string} tag
 * @param {string} [name]
 * @param {string} [text]
 */
function element(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

/** @param {HTMLElement} parent */
function build(parent) {
  const root = element("div", "matrix");
  const top = element("div", "top");
  const label = element("span", "label");
  const low = element("span"), ramp = element("span", "ramp"), high = element("span");
  top.append(label, low, ramp, high);
  const table = element("div", "table");
  table.setAttribute("role", "group");
  const description = element("p", "description");
  description.setAttribute("aria-live", "polite");
  root.append(top, table, description);
  parent.appendChild(root);
  const buttons = /** @type {HTMLButtonElement[][]} */ ([]);
  const choose = /** @type {(cell: [number, number]) => void} */ (() => {});
  const grid = { root, label, low, ramp, high, table, description, buttons, at: [0, 0], choose };
  table.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    grid.buttons[grid.at[0] + step[0]]?.[grid.at[1] + step[1]]?.focus();
  });
  return grid;
}

/**
 * Create the buttons and their labels; called only when the number of blocks or heads changes.
 *
 * @param {Grid} grid
 * @param {number} blocks
 * @param {number} heads
 */
function layOut(grid, blocks, heads) {
  grid.table.style.setProperty("--heads", String(heads));
  grid.table.replaceChildren(element("span"));
  for (let head = 1; head <= heads; head++) grid.table.append(element("span", "column", String(head)));
  grid.buttons = [];
  for (let block = 0; block < blocks; block++) {
    grid.table.append(element("span", "row", String(block + 1)));
    grid.buttons[block] = Array.from({ length: heads }, (_, head) => buttonOf(grid, block, head));
    grid.table.append(...grid.buttons[block]);
  }
  grid.at = [0, 0];
}

/**
 * @param {Grid} grid
 * @param {number} block
 * @param {number} head
 */
function buttonOf(grid, block, head) {
  const button = document.createElement("button");
  button.type = "button";
  button.tabIndex = block || head ? -1 : 0; // a single tab stop for the grid; arrow keys move inside it
  button.addEventListener("focus", () => {
    grid.buttons[grid.at[0]]?.[grid.at[1]]?.setAttribute("tabindex", "-1");
    grid.at = [block, head];
    button.tabIndex = 0;
    grid.description.textContent = button.title;
  });
  button.addEventListener("pointerenter", () => (grid.description.textContent = button.title));
  button.addEventListener("click", () => grid.choose([block, head]));
  return button;
}

/** @param {Mount} mount */
export default function ({ data, parentElement, setTriggerValue }) {
  const grid = GRIDS.get(parentElement) ?? build(parentElement);
  GRIDS.set(parentElement, grid);
  /** @type {Cell[][]} */
  const cells = data.cells;
  if (grid.buttons.length !== cells.length || grid.buttons[0]?.length !== cells[0]?.length)
    layOut(grid, cells.length, cells[0]?.length ?? 0);
  grid.choose = (cell) => setTriggerValue("cell", cell);
  grid.label.textContent = data.label;
  for (const part of [grid.low, grid.ramp, grid.high]) part.hidden = !data.ends.length;
  [grid.low.textContent = "", grid.high.textContent = ""] = data.ends;
  grid.ramp.style.background = `linear-gradient(to right, ${data.ramp.join(", ")})`;
  grid.table.setAttribute("aria-label", data.label);
  cells.forEach((row, block) =>
    row.forEach(({ color, text, marked }, head) => {
      const button = grid.buttons[block][head];
      button.style.backgroundColor = color;
      button.classList.toggle("unknown", !color);
      button.title = text;
      button.setAttribute("aria-label", text);
      button.setAttribute("aria-pressed", String(marked));
    }),
  );
  if (!grid.description.textContent) grid.description.textContent = " ";
  return () => GRIDS.delete(parentElement);
}
