// Reports finished runs in the page's title and, if allowed, as browser notifications.

/** @import { Mount } from "../../../vit/view/web/types" */
/** @typedef {{ id: string, name: string, status: string, accuracy: string }} Run */

/** @type {WeakMap<HTMLElement, ReturnType<typeof build>>} */
const INSTANCES = new WeakMap();
const ENDED = new Set(["Finished", "Stopped", "Failed", "Interrupted"]);
const STORED = "vit-finish-notice"; // key in localStorage, "1" if notifications are on

/** Whether notifications are on in this browser. */
function isOn() {
  try {
    return "Notification" in window && Notification.permission === "granted" && localStorage[STORED] === "1";
  } catch {
    return false; // storage is disabled
  }
}

/**
 * Update the button.
 *
 * @param {HTMLButtonElement} button
 */
function updateButton(button) {
  button.setAttribute("aria-pressed", String(isOn()));
  button.hidden = !("Notification" in window);
  const blocked = "Notification" in window && Notification.permission === "denied";
  const words = button.querySelector(".off");
  if (words) words.textContent = blocked ? "Notifications are blocked" : "Notify me";
  if (blocked) button.title = "This browser refuses notifications of this page; its settings allow them.";
}

/** @param {HTMLElement} parent */
function build(parent) {
  const button = /** @type {HTMLButtonElement} */ (parent.querySelector("button"));
  button.addEventListener("click", async () => {
    const wanted = !isOn();
    if (wanted && (await Notification.requestPermission()) !== "granted") return updateButton(button);
    try {
      localStorage[STORED] = wanted ? "1" : "0";
    } catch {}
    updateButton(button);
  });
  const seen = /** @type {Map<string, Run>} */ (new Map());
  return { button, seen, title: document.title };
}

/** @param {Mount} mount */
export default function ({ data, parentElement }) {
  const notice = INSTANCES.get(parentElement) ?? build(parentElement);
  INSTANCES.set(parentElement, notice);
  /** @type {Map<string, Run>} */
  const now = new Map(data.runs.map((/** @type {Run} */ run) => [run.id, run]));
  for (const run of now.values()) {
    const before = notice.seen.get(run.id);
    if (before && !ENDED.has(before.status) && ENDED.has(run.status)) {
      const text = run.accuracy ? `${run.status}, accuracy ${run.accuracy}` : run.status;
      if (isOn()) new Notification(run.name, { body: text, tag: run.id });
    }
  }
  notice.seen = now;
  const wanted = data.title || notice.title;
  if (document.title !== wanted) document.title = wanted;
  updateButton(notice.button);
  return () => {
    document.title = notice.title;
    INSTANCES.delete(parentElement);
  };
}
