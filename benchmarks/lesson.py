"""Measure the numerical difference between the lesson and torch.

    python benchmarks/lesson.py [--checkpoint cifar10] [--data data/imagenette/test] [--pictures 1000]

Drives Chromium on the file, opened from disk. Pictures are passed as PNG, so that both sides decode the same pixels.
Each is resized, run through the model, and compared with the checkpoint and with torch on the rounded weights in the
file.
"""

import argparse
import base64
import copy
import io
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]

from serving import BROWSER_ARGUMENTS, chromium

from vit.checkpoints import load_checkpoint
from vit.checkpoints.checkpoint import Checkpoint
from vit.images.files.decode import decode_image
from vit.lesson.page import bundled, lesson, model_bytes
from vit.lesson.weights import pack_weights, unpack_weights
from vit.model.transformer import VisionTransformer

# Runs the worker's script in the page: takes a file, returns the prediction and all attention.
HARNESS = (
    bundled("worker.js")
    + """
globalThis.bytesFrom = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
globalThis.lookAt = async (model, file) => {
  const { pixels, width, height } = readPixels(await createImageBitmap(file, { colorSpaceConversion: "none" }));
  const bytes = new Uint8Array(await file.arrayBuffer());
  return model.classify(pixels, { bytes, type: file.type, width, height });
};
globalThis.readModel = (text) => Model.read(bytesFrom(text));
"""
)
NUMBERS = """async (text) => {
  const { probabilities } = await lookAt(model, new Blob([bytesFrom(text)], { type: "image/png" }));
  const { blocks, tokens, space } = model.transformer;
  const maps = blocks.flatMap(({ attention }) => attention);
  const rows = maps.flatMap((map) => Array.from({ length: tokens }, (_, i) => space.row(map, i)));
  const all = new Float32Array(rows.length * tokens);
  rows.forEach((row, i) => all.set(row, i * tokens));
  let letters = "";
  const bytes = new Uint8Array(all.buffer);
  for (let i = 0; i < bytes.length; i += 32768) letters += String.fromCharCode(...bytes.subarray(i, i + 32768));
  return [[...probabilities], btoa(letters)];
}"""


def rounded(checkpoint: Checkpoint) -> VisionTransformer:
    """Return the model with the rounded weights of the file."""
    model = copy.deepcopy(checkpoint.model)
    weights = unpack_weights(pack_weights(checkpoint.model))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.tensor(weights[name]).view_as(parameter))
    return model


def pictures(folder: Path, count: int) -> Iterator[Image.Image]:
    """Return `count` pictures of a folder, evenly spread over its files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for place in np.linspace(0, len(files) - 1, min(count, len(files))).astype(int):
        yield decode_image(files[place].read_bytes())


def numbers_of(model: VisionTransformer, pixels: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Compute probabilities (C) and attention (L, H, N, N) with torch."""
    with torch.inference_mode():
        output = model(pixels, output_attentions=True)
    assert output.attentions is not None
    return model.probabilities(output.logits)[0].numpy(), torch.cat(output.attentions).numpy()


def print_differences(page: Page, checkpoint: Checkpoint, folder: Path, count: int) -> None:
    """Print the largest differences between the browser and torch."""
    models = {"the checkpoint": checkpoint.model, "the rounded weights": rounded(checkpoint)}
    worst = {name: [0.0, 0.0] for name in models}
    seen = agree = 0
    for picture in pictures(folder, count):
        file = io.BytesIO()
        picture.save(file, "PNG", compress_level=1)
        found, letters = page.evaluate(NUMBERS, base64.b64encode(file.getvalue()).decode())
        attention = np.frombuffer(base64.b64decode(letters), np.float32)
        pixels = checkpoint.preprocess(picture)
        for name, model in models.items():
            probabilities, maps = numbers_of(model, pixels)
            worst[name][0] = max(worst[name][0], float(np.abs(probabilities - found).max()))
            worst[name][1] = max(worst[name][1], float(np.abs(maps.ravel() - attention).max()))
            agree += name == "the checkpoint" and int(probabilities.argmax() == np.argmax(found))
        seen += 1
        if seen % 100 == 0:
            print(f"  {seen} pictures …", file=sys.stderr, flush=True)
    for name, (of_probability, of_attention) in worst.items():
        print(f"largest difference to torch on {name}: {of_probability:.1e} in probability, {of_attention:.1e} in "
              f"attention, over {seen} pictures")  # fmt: skip
    print(f"same answer: {agree} of {seen}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", default="cifar10")
    parser.add_argument("--data", type=Path, default=Path("data/imagenette/test"))
    parser.add_argument("--pictures", type=int, default=1000)
    options = parser.parse_args()
    checkpoint = load_checkpoint(options.checkpoint)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder, "lesson.html")
        path.write_bytes(lesson(checkpoint))
        browser = playwright.chromium.launch(**chromium(), args=BROWSER_ARGUMENTS)
        page = browser.new_page(bypass_csp=True)
        page.goto(path.as_uri())
        page.locator("main[data-state=ready]").wait_for()
        page.evaluate(f"() => {{ {HARNESS} }}")
        page.evaluate("async (text) => { globalThis.model = await readModel(text); }",
                      base64.b64encode(model_bytes(checkpoint)).decode())  # fmt: skip
        print(f"computed by {page.evaluate('() => model.engine')}")
        print_differences(page, checkpoint, options.data, options.pictures)


if __name__ == "__main__":
    main()
