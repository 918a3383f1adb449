"""Classes by examples on a backbone without a head, where it is known what they are: pictures of drawn shapes.

    python benchmarks/planted_classes.py             # trains the preset `shapes` first, half a minute
    python benchmarks/planted_classes.py --run DIR   # with the best checkpoint of a run that is there

The model loses its head, is taught the four shapes by examples, and the map of each method is judged against the
shape's own pixels: the pointing game asks whether its strongest pixel lies on the shape. Goal: 95 % for relevance.
"""

import argparse
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from torch import nn

from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.explain.answers.examples import answers_from_examples
from vit.explain.method_ranking import rank, table
from vit.model.transformer import VisionTransformer

GOAL = 0.95


def headless(best: Path, folder: Path) -> Path:
    """The checkpoint without its head and its classes."""
    checkpoint = load_checkpoint(best)
    model = VisionTransformer(replace(checkpoint.config, num_classes=0))
    weights = {name: tensor for name, tensor in checkpoint.model.state_dict().items() if not name.startswith("head.")}
    assert model.load_state_dict(weights, strict=False).missing_keys == [] and isinstance(model.head, nn.Module)
    return save_checkpoint(folder, model.eval(), [], checkpoint.preprocess)


def main() -> None:
    """Print the table; end with 1 below the goal."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--run", type=Path)
    options.add_argument("--examples", type=int, default=300)
    options.add_argument("--limit", type=int, default=500)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = chosen.run or Path(folder) / "run"
        if chosen.run is None:
            subprocess.run([sys.executable, "-m", "vit", "train", "--preset", "shapes", "--run", str(run)], check=True)
        backbone = load_checkpoint(headless(run / "checkpoints" / "best", Path(folder) / "backbone"))
        assert not backbone.labels
        answers = answers_from_examples(backbone, "shapes", "probe", chosen.examples, bar=True)
        assert answers.accuracy is not None and answers.interval is not None
        low, high = answers.interval
        print(f"{answers.source}: right about {answers.accuracy:.1%} of those held out ({low:.1%} to {high:.1%})")
        ranked = rank(backbone.with_answers(answers), "shapes", chosen.limit, bar=True)
        print("\n".join(table(ranked)))
        points = next(one.points for one in ranked if one.name == "relevance")
        assert points is not None
        print(f"Pointing game of relevance: {points.mean:.1%} ({points.low:.1%} to {points.high:.1%}), goal {GOAL:.0%}")
        sys.exit(points.mean < GOAL)


if __name__ == "__main__":
    main()
