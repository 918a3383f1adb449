// Client of the model's web worker: sends requests and resolves responses.

/** A web worker created from source text. */
export class Thread {
  /** @param {string} script */
  constructor(script) {
    const address = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    this.worker = new Worker(address);
    /** @type {Map<number, { resolve: (result: any) => void, reject: (error: Error) => void }>} */
    this.open = new Map();
    this.count = 0;
    this.worker.addEventListener("message", ({ data: { id, result, error } }) => {
      const waiting = this.open.get(id);
      this.open.delete(id);
      if (error) waiting?.reject(new Error(error));
      else waiting?.resolve(result);
    });
  }

  /**
   * Send a request to the worker.
   *
   * @param {string} name name of a handler in worker.js
   * @param {unknown} content
   * @param {Transferable[]} [moved]
   * @returns {Promise<any>}
   */
  ask(name, content, moved = []) {
    const id = ++this.count;
    this.worker.postMessage({ id, name, content }, moved);
    return new Promise((resolve, reject) => this.open.set(id, { resolve, reject }));
  }
}
