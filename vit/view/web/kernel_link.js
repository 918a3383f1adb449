// anywidget module without a view of its own. It runs in the notebook's page, once per view of a running kernel, and
// relays messages between the kernel and the frames that show the view.

/** @import { Link } from "./types" */

export default {
  /** @param {{ model: Link }} widget */
  initialize({ model }) {
    const view = model.get("view");
    /** @type {Set<Window>} */
    const frames = new Set();

    const heard = (/** @type {MessageEvent} */ { source, data }) => {
      if (data?.view !== view || !source) return;
      if (data.here) {
        frames.add(/** @type {Window} */ (source));
        model.send({ asks: "all" }); // unanswered if the kernel has stopped
      }
      if (data.chosen) model.send({ chosen: data.chosen });
    };

    const tell = (/** @type {object} */ told, /** @type {object[]} */ payloads) => {
      for (const frame of frames)
        if (frame.closed) frames.delete(frame);
        else frame.postMessage({ view, told, payloads }, "*");
    };
    const pass = (/** @type {{ told: object, ids: string[] }} */ { told, ids }, /** @type {DataView[]} */ buffers) =>
      tell({ ...told, alone: false }, ids.map((id, i) => ({ id, bytes: copied(buffers[i]) })));

    globalThis.addEventListener("message", heard);
    model.on("msg:custom", pass);
    for (const frame of document.querySelectorAll("iframe"))
      if (frame.name === view) frame.contentWindow?.postMessage({ view, asks: "who" }, "*");
    return () => {
      tell({ alone: true }, []);
      globalThis.removeEventListener("message", heard);
      model.off("msg:custom", pass);
    };
  },
};

/** @param {DataView} view may share its buffer with other parts of a kernel message, hence the copy */
function copied({ buffer, byteOffset, byteLength }) {
  return buffer.slice(byteOffset, byteOffset + byteLength);
}
