// anywidget module without a view of its own. It runs in the notebook's page, once per view of a running kernel, and
// relays messages between the kernel and the frames that show the view.

/** @import { Link } from "./types" */

export default {
  /** @param {{ model: Link }} widget */
  initialize({ model }) {
    const view = model.get("view");
    /** @type {Set<Window>} */
    const frames = new Set();

    const onFrameMessage = (/** @type {MessageEvent} */ { source, data }) => {
      if (data?.view !== view || !source) return;
      if (data.here) {
        frames.add(/** @type {Window} */ (source));
        model.send({ request: "all" }); // unanswered if the kernel has stopped
      }
      if (data.chosen) model.send({ chosen: data.chosen });
    };

    const broadcast = (/** @type {object} */ message, /** @type {object[]} */ payloads) => {
      for (const frame of frames)
        if (frame.closed) frames.delete(frame);
        else frame.postMessage({ view, update: message, payloads }, "*"); // a sandboxed frame has no origin to name
    };
    const onKernelMessage = (/** @type {{ update: object, ids: string[] }} */ { update: message, ids }, /** @type {DataView[]} */ buffers) =>
      broadcast({ ...message, alone: false }, ids.map((id, i) => ({ id, bytes: copyBytes(buffers[i]) })));

    globalThis.addEventListener("message", onFrameMessage);
    model.on("msg:custom", onKernelMessage);
    for (const frame of document.querySelectorAll("iframe"))
      if (frame.name === view) frame.contentWindow?.postMessage({ view, request: "announce" }, "*");
    return () => {
      broadcast({ alone: true }, []);
      globalThis.removeEventListener("message", onFrameMessage);
      model.off("msg:custom", onKernelMessage);
    };
  },
};

/** @param {DataView} view may share its buffer with other parts of a kernel message, hence the copy */
function copyBytes({ buffer, byteOffset, byteLength }) {
  return buffer.slice(byteOffset, byteOffset + byteLength);
}
