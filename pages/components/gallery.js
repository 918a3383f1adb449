// A strip of sample pictures. Also passes pasted pictures to the file uploader. Text is set as textContent, never HTML.

/** @import { Mount } from "../../vit/view/web/types" */
/** @typedef {ReturnType<typeof build>} Strip */
/** @typedef {{ name: string, credit: string, source: string }} Sample */

/** @type {WeakMap<HTMLElement, Strip>} */
const STRIPS = new WeakMap();

/** @param {HTMLElement} parent */
function build(parent) {
  const root = document.createElement("div");
  root.className = "strip";
  root.setAttribute("role", "group");
  parent.appendChild(root);
  const more = document.createElement("details"), others = document.createElement("div");
  const face = document.createElement("summary");
  more.append(face, others);
  others.className = "others";
  others.tabIndex = -1;
  more.addEventListener("focusout", ({ relatedTarget }) => {
    if (!more.contains(/** @type {Node | null} */ (relatedTarget))) more.open = false;
  });
  more.addEventListener("keydown", ({ key }) => {
    if (key === "Escape") more.open = false;
  });
  /** @param {ClipboardEvent} event */
  const paste = (event) => {
    const file = [...(event.clipboardData?.files ?? [])].find((item) => item.type.startsWith("image/"));
    /** @type {HTMLInputElement | null} */
    const input = document.querySelector('[data-testid="stFileUploader"] input[type="file"]');
    if (!file || !input) return;
    event.preventDefault();
    // Streamlit's uploader reads the files of its input on "change".
    const files = new DataTransfer();
    files.items.add(file);
    input.files = files.files;
    input.dispatchEvent(new Event("change", { bubbles: true }));
  };
  const buttons = /** @type {Map<string, HTMLButtonElement>} */ (new Map());
  const choose = /** @type {(name: string) => void} */ (() => {});
  return { root, more, face, others, paste, buttons, choose };
}

/**
 * @param {Strip} strip
 * @param {Sample[]} samples
 * @param {number} preview number of thumbnails on a button that opens all samples; 0 draws the whole strip
 */
function fill(strip, samples, preview) {
  strip.root.replaceChildren();
  strip.others.replaceChildren();
  strip.buttons.clear();
  for (const { name, credit, source } of samples) {
    const button = document.createElement("button");
    const image = document.createElement("img");
    image.src = source;
    image.alt = "";
    button.type = "button";
    button.title = credit;
    button.setAttribute("aria-label", credit);
    button.appendChild(image);
    button.addEventListener("click", () => {
      strip.more.open = false;
      strip.choose(name);
    });
    (preview ? strip.others : strip.root).appendChild(button);
    strip.buttons.set(name, button);
  }
  if (!preview) return;
  const few = samples.slice(0, preview).map(({ source }) => Object.assign(document.createElement("img"), { src: source, alt: "" }));
  strip.face.replaceChildren(...few, "Samples");
  strip.root.append(strip.more);
}

/** @param {Mount} mount */
export default function ({ data, parentElement, setTriggerValue }) {
  const strip = STRIPS.get(parentElement) ?? build(parentElement);
  STRIPS.set(parentElement, strip);
  strip.choose = (name) => setTriggerValue("sample", name);
  strip.root.setAttribute("aria-label", data.label);
  if (data.pastes) document.addEventListener("paste", strip.paste); // adding the same listener again has no effect
  const names = data.samples.map((/** @type {Sample} */ { name }) => name);
  if ([...strip.buttons.keys()].join() !== names.join()) fill(strip, data.samples, data.preview);
  for (const [name, button] of strip.buttons) button.setAttribute("aria-pressed", String(name === data.chosen));
  return () => {
    document.removeEventListener("paste", strip.paste);
    STRIPS.delete(parentElement);
  };
}
