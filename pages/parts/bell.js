// Tells when a run ends: on the page's title and, once allowed, as a notification of the browser. Text enters as text.

const BELLS = new WeakMap(); // parentElement: bell
const ENDED = new Set(["Finished", "Stopped", "Failed", "Interrupted"]);
const WANTED = "vit-bell"; // in localStorage: whether this browser rings

function build(parent) {
  const button = parent.querySelector("button");
  const bell = { button, seen: null, title: document.title, words: {} };
  bell.on = () => {
    try {
      return "Notification" in window && Notification.permission === "granted" && localStorage[WANTED] === "1";
    } catch {
      return false; // storage is switched off
    }
  };
  bell.reflect = () => {
    button.setAttribute("aria-pressed", String(bell.on()));
    button.hidden = !("Notification" in window);
    const blocked = "Notification" in window && Notification.permission === "denied";
    button.querySelector(".off").textContent = blocked ? "Notifications are blocked" : "Notify me";
    if (blocked) button.title = "This browser refuses notifications of this page; its settings allow them.";
  };
  button.addEventListener("click", async () => {
    const wanted = !bell.on();
    if (wanted && (await Notification.requestPermission()) !== "granted") return bell.reflect();
    try {
      localStorage[WANTED] = wanted ? "1" : "0";
    } catch {}
    bell.reflect();
  });
  return bell;
}

export default function ({ data, parentElement }) {
  let bell = BELLS.get(parentElement);
  if (!bell) BELLS.set(parentElement, (bell = build(parentElement)));
  const now = new Map(data.runs.map((run) => [run.id, run]));
  for (const run of now.values()) {
    const before = bell.seen?.get(run.id);
    if (before && !ENDED.has(before.status) && ENDED.has(run.status)) {
      const text = run.accuracy ? `${run.status}, accuracy ${run.accuracy}` : run.status;
      if (bell.on()) new Notification(run.name, { body: text, tag: run.id });
    }
  }
  bell.seen = now;
  const wanted = data.title || bell.title;
  if (document.title !== wanted) document.title = wanted;
  bell.reflect();
  return () => {
    document.title = bell.title;
    BELLS.delete(parentElement);
  };
}
