// Tells when a run ends: on the page's title and, once allowed, as a notification of the browser. Text enters as text.

const NOTICES = new WeakMap(); // parentElement: notice
const ENDED = new Set(["Finished", "Stopped", "Failed", "Interrupted"]);
const WANTED = "vit-finish-notice"; // in localStorage: whether this browser tells

function build(parent) {
  const button = parent.querySelector("button");
  const notice = { button, seen: null, title: document.title, words: {} };
  notice.on = () => {
    try {
      return "Notification" in window && Notification.permission === "granted" && localStorage[WANTED] === "1";
    } catch {
      return false; // storage is switched off
    }
  };
  notice.reflect = () => {
    button.setAttribute("aria-pressed", String(notice.on()));
    button.hidden = !("Notification" in window);
    const blocked = "Notification" in window && Notification.permission === "denied";
    button.querySelector(".off").textContent = blocked ? "Notifications are blocked" : "Notify me";
    if (blocked) button.title = "This browser refuses notifications of this page; its settings allow them.";
  };
  button.addEventListener("click", async () => {
    const wanted = !notice.on();
    if (wanted && (await Notification.requestPermission()) !== "granted") return notice.reflect();
    try {
      localStorage[WANTED] = wanted ? "1" : "0";
    } catch {}
    notice.reflect();
  });
  return notice;
}

export default function ({ data, parentElement }) {
  let notice = NOTICES.get(parentElement);
  if (!notice) NOTICES.set(parentElement, (notice = build(parentElement)));
  const now = new Map(data.runs.map((run) => [run.id, run]));
  for (const run of now.values()) {
    const before = notice.seen?.get(run.id);
    if (before && !ENDED.has(before.status) && ENDED.has(run.status)) {
      const text = run.accuracy ? `${run.status}, accuracy ${run.accuracy}` : run.status;
      if (notice.on()) new Notification(run.name, { body: text, tag: run.id });
    }
  }
  notice.seen = now;
  const wanted = data.title || notice.title;
  if (document.title !== wanted) document.title = wanted;
  notice.reflect();
  return () => {
    document.title = notice.title;
    NOTICES.delete(parentElement);
  };
}
