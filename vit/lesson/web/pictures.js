// Picture sources: embedded samples, files, the clipboard and the camera.

import { element, make } from "./elements.js";
import { translate } from "../../view/web/words.js";

/** @typedef {{ name: string, credit: string, file: Blob }} Sample */

/** The row of pictures above the answer. */
export class Pictures {
  /**
   * @param {Sample[]} samples
   * @param {(file: Blob) => void} onSelect
   */
  constructor(samples, onSelect) {
    this.samples = samples;
    this.onSelect = onSelect;
    this.buttons = samples.map(({ name, file }, number) => {
      const image = make("img", { src: URL.createObjectURL(file), alt: translate(`sample.${name}`) });
      const button = make("button", { type: "button", title: translate(`sample.${name}`) }, image);
      button.addEventListener("click", () => this.choose(number));
      return button;
    });
    element(".samples").replaceChildren(...this.buttons);
    this.listenToFiles();
    this.listenToCamera();
  }

  /** @param {number} number index of a sample */
  choose(number) {
    this.use(this.samples[number].file, number);
  }

  /**
   * @param {Blob} file
   * @param {number} [number] index of the sample, if it is one
   */
  use(file, number = -1) {
    this.buttons.forEach((button, each) => button.setAttribute("aria-pressed", String(each === number)));
    const sample = this.samples[number];
    element(".credit").textContent = sample ? translate("credit", { title: translate(`sample.${sample.name}`), credit: sample.credit }) : translate("own picture");
    this.onSelect(file);
  }

  /** Accept files that are opened, dropped or pasted. */
  listenToFiles() {
    const input = /** @type {HTMLInputElement} */ (element(".own input"));
    const first = (/** @type {FileList | undefined} */ files) => files?.[0] && this.use(files[0]);
    element(".open").addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      first(input.files ?? undefined);
      input.value = ""; // so that selecting the same file again fires "change"
    });
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      first(event.dataTransfer?.files);
    });
    document.addEventListener("paste", (event) => first(event.clipboardData?.files));
  }

  /** Take pictures with the camera, if the browser allows it for local files. */
  listenToCamera() {
    const dialog = /** @type {HTMLDialogElement} */ (element(".filming"));
    const video = /** @type {HTMLVideoElement} */ (element("video", dialog));
    const button = element(".camera");
    if (!navigator.mediaDevices) {
      button.hidden = true;
      return;
    }
    dialog.addEventListener("close", () => {
      for (const track of /** @type {MediaStream | null} */ (video.srcObject)?.getTracks() ?? []) track.stop();
      video.srcObject = null;
    });
    element(".cancel", dialog).addEventListener("click", () => dialog.close());
    element(".shoot", dialog).addEventListener("click", () => {
      const canvas = Object.assign(document.createElement("canvas"), { width: video.videoWidth, height: video.videoHeight });
      canvas.getContext("2d")?.drawImage(video, 0, 0);
      canvas.toBlob((file) => {
        dialog.close();
        if (file) this.use(file);
      }, "image/jpeg", 0.92);
    });
    button.addEventListener("click", async () => {
      try {
        video.srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
        await video.play();
        dialog.showModal();
      } catch {
        const line = element(".problem");
        line.hidden = false;
        line.textContent = translate("no camera");
      }
    });
  }
}
