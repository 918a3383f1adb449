"""Measure the cost of `vit.RunWriter` in another training loop, with timm's ViT-Ti at 96 px on real photos.

    python benchmarks/run_writer.py --data data/imagenette [--pictures 9469] [--epochs 3] [--size tiny]

Two trainings with the same seed, one of them with the writer, alternate epoch by epoch. The script prints the time of
the writer's calls and of its thread, for which the loop does not wait, as shares of an epoch; and whether the weights
of both trainings are bit-identical.
"""

import argparse
import hashlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import timm
import torch
from PIL import Image
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import vit
from vit.data.datasets import load_dataset

BATCH, SIDE = 64, 96


class Training:
    """A model and its optimizer, with a random number generator of its own."""

    def __init__(self, size: str, classes: int, images: Tensor, labels: Tensor):
        torch.manual_seed(0)
        name = f"vit_{size}_patch16_224"
        self.model = timm.create_model(name, img_size=SIDE, num_classes=classes, drop_rate=0.1, drop_path_rate=0.1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 5e-4)
        self.images, self.labels, self.step = images, labels, 0
        self.state = torch.get_rng_state()

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.images))
        for chosen in order[: len(order) // BATCH * BATCH].view(-1, BATCH):
            yield (self.images[chosen] / 255 - 0.5) / 0.5, self.labels[chosen]

    def epoch(self, number: int, writer: vit.RunWriter | None) -> float:
        """Train for one epoch; return its duration [s]."""
        torch.set_rng_state(self.state)
        self.model.train()
        begun = time.perf_counter()
        for images, labels in self.batches():
            loss = nn.functional.cross_entropy(self.model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            if writer:
                writer.log_step(self.step, loss=loss, lr=5e-4)
        if writer:
            # Each epoch is the best so far, so each is saved.
            writer.log_epoch(number, self.model, val_accuracy=number / 1000)
        self.state = torch.get_rng_state()
        return time.perf_counter() - begun

    def digest(self) -> str:
        return hashlib.sha256(b"".join(t.numpy().tobytes() for t in self.model.state_dict().values())).hexdigest()


def main() -> None:
    """Run both trainings, and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data/imagenette", help="a folder with one folder of pictures per class")
    parser.add_argument("--pictures", type=int, default=9469)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--size", default="tiny", help="size of timm's model: tiny, small, base")
    options = parser.parse_args()
    preprocess = vit.Preprocess((SIDE, SIDE))
    dataset = load_dataset(f"folder:{options.data}", preprocess, root=Path("."), at_most=options.pictures)
    images, labels = dataset.train.images[: options.pictures], dataset.train.labels[: options.pictures]
    steps = len(images) // BATCH
    print(f"{len(images)} pictures, {steps} steps an epoch, {torch.get_num_threads()} threads")
    plain, written = (Training(options.size, len(dataset.classes), images, labels) for _ in range(2))
    pictures = [Image.fromarray(pixels.permute(1, 2, 0).numpy()) for pixels in images[:100]]
    calls, threads, ratios = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        arguments = dict(epochs=options.epochs, steps_per_epoch=steps, classes=dataset.classes, preprocess=preprocess)
        writer = vit.RunWriter(Path(folder) / "run", pictures=pictures, labels=labels[:100], **arguments)
        for number in range(1, options.epochs + 1):
            before = writer.seconds
            with_writer = written.epoch(number, writer)
            calls.append(writer.seconds - before)
            begun = time.perf_counter()
            writer._snapshots.wait()
            threads.append(time.perf_counter() - begun)
            without = plain.epoch(number, None)
            ratios.append(with_writer / without)
            print(
                f"epoch {number}: {without:.1f} s without; calls {calls[-1]:.2f} s ({calls[-1] / without:.2%}), "
                f"thread {threads[-1]:.2f} s ({threads[-1] / without:.2%}); with / without {ratios[-1]:.3f}"
            )
        writer.close()
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    same = plain.digest() == written.digest()
    print(f"with / without, median {median(ratios):.3f}; {size / 1e6:.0f} MB written; same bits: {same}")


if __name__ == "__main__":
    main()
