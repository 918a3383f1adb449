// A strip of sample pictures, and the way of a pasted picture to the file uploader. Text enters as textContent only.

const STRIPS = new WeakMap();

function build(parent) {
  const root = document.createElement("div");
  root.className = "strip";
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", "Sample pictures");
  parent.appendChild(root);
  const strip = { root, buttons: new Map(), choose: () => {} };
  strip.paste = (event) => {
    const file = [...(event.clipboardData?.files ?? [])].find((item) => item.type.startsWith("image/"));
    const input = document.querySelector('[data-testid="stFileUploader"] input[type="file"]');
    if (!file || !input) return;
    event.preventDefault();
    const files = new DataTransfer();
    files.items.add(file);
    input.files = files.files;
    input.dispatchEvent(new Event("change", { bubbles: true }));
  };
  document.addEventListener("paste", strip.paste);
  return strip;
}

function fill(strip, samples) {
  strip.root.replaceChildren();
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
    button.addEventListener("click", () => strip.choose(name));
    strip.root.appendChild(button);
    strip.buttons.set(name, button);
  }
}

export default function ({ data, parentElement, setTriggerValue }) {
  let strip = STRIPS.get(parentElement);
  if (!strip) STRIPS.set(parentElement, (strip = build(parentElement)));
  strip.choose = (name) => setTriggerValue("sample", name);
  if (strip.buttons.size !== data.samples.length) fill(strip, data.samples);
  for (const [name, button] of strip.buttons) button.setAttribute("aria-pressed", String(name === data.chosen));
  return () => {
    document.removeEventListener("paste", strip.paste);
    STRIPS.delete(parentElement);
  };
}
