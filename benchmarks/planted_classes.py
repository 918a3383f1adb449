"""Play the pointing game with classes from examples on a headless backbone, with pictures of drawn shapes.

    python benchmarks/planted_classes.py             # trains such a backbone first, half a minute
    python benchmarks/planted_classes.py --run DIR   # with the best checkpoint of an existing run

The model's head is removed, and example pictures define the four shapes as classes. The pointing game checks whether
the strongest patch of a map contains part of the shape. The goal is 95% for relevance. A patch counts as a whole:
shapes are recognised by their outline, where patches are partly background and a patch's centre may lie outside. Random
maps and a blob in the middle show how much easier this makes the game.

Source: pointing game, Zhang et al. 2016, arXiv 1608.00507, section 4.2, there with a tolerance of 15 px.
"""

import argparse
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import Tensor, nn

from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.data.datasets import load_dataset
from vit.explain.classes.examples import classes_from_examples
from vit.explain.faithfulness import centre, noise, points_at
from vit.explain.method_ranking import BLOB, RANDOM, interval
from vit.explain.methods import METHODS, heatmap_of
from vit.explain.recorded_pass import RecordedPass
from vit.images.preprocess import Normalise
from vit.model.transformer import VisionTransformer

GOAL = 0.95


def headless(best: Path, folder: Path) -> Path:
    """Return the checkpoint without its head and classes."""
    checkpoint = load_checkpoint(best)
    model = VisionTransformer(replace(checkpoint.config, num_classes=0))
    weights = {name: tensor for name, tensor in checkpoint.model.state_dict().items() if not name.startswith("head.")}
    assert model.load_state_dict(weights, strict=False).missing_keys == [] and isinstance(model.head, nn.Module)
    return save_checkpoint(folder, model.eval(), [], checkpoint.preprocess)


def holds(heatmap: Tensor, mask: Tensor) -> bool:
    """Whether the strongest patch of a map (rows, cols) contains part of the object, bool (height, width)."""
    side = mask.shape[0] // heatmap.shape[0]
    patches = mask.unfold(0, side, side).unfold(1, side, side).flatten(2).any(2)
    return bool(patches.flatten()[heatmap.flatten().argmax()])


def main() -> None:
    """Print a line for each map; exit with 1 below the goal."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--run", type=Path)
    options.add_argument("--examples", type=int, default=300)
    options.add_argument("--limit", type=int, default=500)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = chosen.run or Path(folder) / "run"
        if chosen.run is None:
            command = [
                sys.executable,
                "-m",
                "vit",
                "train",
                "--preset",
                "shapes",
                "--set",
                "pool=mean",
                "--run",
                str(run),
            ]
            subprocess.run(command, check=True)
        backbone = load_checkpoint(headless(run / "checkpoints" / "best", Path(folder) / "backbone"))
        assert not backbone.labels
        custom = classes_from_examples(backbone, "shapes", "probe", chosen.examples)
        assert custom.accuracy is not None and custom.interval is not None
        low, high = custom.interval
        print(f"{custom.source}: accuracy on held-out examples {custom.accuracy:.1%} ({low:.1%} to {high:.1%})")
        checkpoint = backbone.with_classes(custom)
        data = load_dataset("shapes", checkpoint.preprocess, only="test", at_most=chosen.limit)
        assert data.masks is not None
        normalise, hits = Normalise(checkpoint.preprocess, torch.device("cpu")), dict[str, list[tuple[bool, bool]]]()
        batches = data.test.batches(torch.arange(len(data.masks)), 1, torch.device("cpu"))
        for index, ((image, _), mask) in enumerate(zip(batches, data.masks, strict=True)):
            recorded = RecordedPass.of_class(checkpoint.model, normalise(image))
            maps = {name: heatmap_of(recorded, name) for name, method in METHODS.items() if not method.passes}
            maps |= {RANDOM: noise(recorded.record.grid, index), BLOB: centre(recorded.record.grid)}
            for name, heatmap in maps.items():
                hits.setdefault(name, []).append((holds(heatmap, mask), points_at(heatmap, mask)))
    shares = {name: torch.tensor(every, dtype=torch.float64) for name, every in hits.items()}
    print(f"Pointing game on {len(data.masks)} test pictures: strongest patch holds some of the shape; its centre does")
    for name, every in sorted(shares.items(), key=lambda pair: -float(pair[1][:, 0].mean())):
        patch, pixel = (interval(column) for column in every.T)
        print(f"  {name:<24} {patch.mean:6.1%} ({patch.low:.1%} to {patch.high:.1%})   {pixel.mean:6.1%}")
    sys.exit(float(shares["relevance"][:, 0].mean()) < GOAL)


if __name__ == "__main__":
    main()
