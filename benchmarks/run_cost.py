"""What a run's machinery costs the training: records, heartbeat, TensorBoard, probes, checkpoints and the state.

    python benchmarks/run_cost.py [--pictures 50000] [--epochs 2]

Trains the `tintn` size on pictures of noise, as many as CIFAR-10 has, and times each part inside that one run.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from vit.data.datasets import Dataset
from vit.data.pictures import Resident
from vit.training.distributed import set_up_process
from vit.training.presets import train_config
from vit.training.recorder import Recorder
from vit.training.snapshot_writer import SnapshotWriter
from vit.training.step import TrainStep
from vit.training.trainer import Trainer

spent: Counter[str] = Counter()  # [s] by part


def watch(owner: type, name: str, part: str) -> None:
    """Time every call of a method; what it calls itself counts once."""
    method: Callable[..., Any] = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        try:
            return method(*args, **kwargs)
        finally:
            spent[part] += time.perf_counter() - begun

    setattr(owner, name, timed)


def noise(count: int) -> Resident:
    """Pictures of 32 x 32 px with random labels."""
    return Resident(torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8), torch.randint(0, 4, (count,)))


def main() -> None:
    """Train, and print the share of each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    config = train_config("tintn", data="shapes", epochs=options.epochs, device=options.device)
    with tempfile.TemporaryDirectory() as folder:
        few = noise(options.pictures // 5)
        dataset = Dataset("noise", ("a", "b", "c", "d"), noise(options.pictures), few, few)
        run = Trainer(config, Path(folder), set_up_process(config), dataset)
        for owner, name, part in (
            (Recorder, "step", "records and heartbeat"),
            (Recorder, "epoch", "records and heartbeat"),
            (SnapshotWriter, "store", "probes"),
            (Trainer, "_save_epoch", "checkpoints and state"),
            (Trainer, "_evaluate", "evaluation"),
            (Trainer, "_run_test", "evaluation"),
            (TrainStep, "take", "steps"),
        ):
            watch(owner, name, part)
        begun = time.perf_counter()
        run.train(0, threading.Event())
        total = time.perf_counter() - begun
    evaluation = spent.pop("evaluation")
    training = total - evaluation
    machinery = training - spent["steps"]
    for part, seconds in spent.most_common():
        print(f"{part:<24} {seconds:7.2f} s  {seconds / training:6.2%}")
    print(
        f"Everything but the steps: {machinery:.2f} s of {training:.1f} s, {machinery / training:.2%} of training time."
    )
    held_out = f"{options.pictures // 5:,} pictures after each epoch and at the end"
    print(f"(Evaluating on {held_out}, not counted: {evaluation:.1f} s.)")


if __name__ == "__main__":
    main()
