// Client of the model's web worker: sends requests and resolves responses.

/** A web worker created from source text. */
export class Thread {
  /** @param {string} script */
  constructor(script) {
    const address = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    this.worker = new Worker(address);
    /** @type {Map<number, { resolve: (result: any) => void, reject: (error: Error) => void }>} */
    this.pending = new Map();
    this.count = 0;
    this.worker.addEventListener("message", ({ data: { id, result, error } }) => {
      const request = this.pending.get(id);
      this.pending.delete(id);
      if (error) request?.reject(new Error(error));
      else request?.resolve(result);
    });
  }

  /**
   * Send a request to the worker.
   *
   * @param {string} name name of a handler in worker.js
   * @param {unknown} content
   * @param {Transferable[]} [transfer]
   * @returns {Promise<any>}
   */
  request(name, content, transfer = []) {
    const id = ++this.count;
    this.worker.postMessage({ id, name, content }, transfer);
    return new Promise((resolve, reject) => this.pending.set(id, { resolve, reject }));
  }
}
