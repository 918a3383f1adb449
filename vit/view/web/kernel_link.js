// Runs in the notebook's page, once for each view of a kernel that lives: carries messages between the kernel and the
// frames that show the view. anywidget calls it; there is nothing of its own to see.

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
        model.send({ asks: "all" }); // a kernel that is gone leaves this without an answer
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

/** @param {DataView} view which may be a part of a message from the kernel */
function copied({ buffer, byteOffset, byteLength }) {
  return buffer.slice(byteOffset, byteOffset + byteLength);
}
