"""Measure how faithful the best map and Removal are after few and many masks, beside the methods without masks.

    python benchmarks/best_map.py --checkpoint cifar10 --data folder:data/cifar10 --limit 200 [--png curve.png]

It prints, with 95% intervals over the test pictures: the correlation with the drops under 128 fresh masks, the share of
maps that are better than chance, and SaCo. Passes are the masks, and four for AttnLRP and its features.
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import vit
from vit.data.datasets import load_dataset
from vit.data.pictures import first_batches
from vit.explain import faithfulness_correlation as masking
from vit.explain.faithfulness import faithfulness
from vit.explain.kriging import BestMap
from vit.explain.method_ranking import interval
from vit.explain.methods import METHODS, heatmap_of
from vit.explain.recorded_pass import RecordedPass
from vit.images.preprocess import Normalise
from vit.progress import pictures_bar

QUICK = ("attnlrp", "gradient-rollout", "relevance")
MASKS = 0, 4, 12, 28, 60, 124, 252  # of the best map: 4 to 256 passes
JUDGES = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", default="cifar10")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--png", type=Path, help="also draw the curves into this file")
    options = parser.parse_args()
    checkpoint = vit.load_checkpoint(options.checkpoint)
    model, cpu = checkpoint.model, torch.device("cpu")
    data = load_dataset(options.data, checkpoint.preprocess, root=Path("data"), only="test", at_most=options.limit)
    normalise, found = Normalise(checkpoint.preprocess, cpu), dict[str, list[tuple[float, float, float]]]()
    count = min(options.limit, len(data.test.labels))
    for index, (image, _) in enumerate(first_batches(data.test, count, 1, cpu, pictures_bar(True))):
        recorded = RecordedPass.of_class(model, normalise(image))
        target, grid = recorded.explained, recorded.record.grid
        fitted, judges = (
            masking.random_masks(grid[0] * grid[1], n, seed) for n, seed in ((256, -1), (JUDGES, index + 1))
        )
        drops, judged = (masking.score_drops(model, recorded.pixels, target, masks) for masks in (fitted, judges))
        known = BestMap.of(model, recorded.pixels, target)
        maps = {name: heatmap_of(recorded, name) for name in QUICK}
        for masks in MASKS:
            maps[f"best {masks + 4}"] = known.fit(fitted, drops[:masks]).weights.view(grid)
            if masks + 4 >= 16:
                part = fitted[: masks + 4], drops[: masks + 4]
                maps[f"removal {masks + 4}"] = masking.removal(*part).weights.view(grid)
        sacos = faithfulness(model, recorded.pixels, target, list(maps.values()))
        for (name, heatmap), saco in zip(maps.items(), sacos, strict=True):
            verdict = masking.faithfulness_verdict(heatmap, judges, judged)
            row = verdict.correlation, float(verdict.label == "better than chance"), saco
            found.setdefault(name, []).append(row)
    means = {}
    for name, rows in found.items():
        correlation, better, saco = (interval(column) for column in torch.tensor(rows, dtype=torch.float64).T)
        means[name] = correlation.mean
        text = (f"{one.mean:.3f} ({one.low:.3f} to {one.high:.3f})" for one in (correlation, saco))
        print(f"{name:18} {next(text)}; better than chance {better.mean:.1%}; SaCo {next(text)}", flush=True)
    if options.png:
        draw(means, options.png)


def draw(means: dict[str, float], file: Path) -> None:
    """Draw the correlation against the passes; a method without masks is a line."""
    from matplotlib.figure import Figure

    axes = (figure := Figure((7, 4), layout="constrained")).subplots()
    for kind, title in (("best", "Best map"), ("removal", "Removal")):
        curve = {int(name.split()[1]): mean for name, mean in means.items() if name.startswith(f"{kind} ")}
        axes.plot(curve.keys(), curve.values(), "o-", label=title)
    for name, style in zip(QUICK, ("--", "-.", ":"), strict=True):
        axes.axhline(means[name], color="grey", ls=style, label=METHODS[name].title)
    axes.set(xscale="log", xlabel="forward passes", ylabel="correlation with fresh masks", ylim=(0, 0.8))
    axes.set_xticks([4, 8, 16, 32, 64, 128, 256], ["4", "8", "16", "32", "64", "128", "256"])
    axes.minorticks_off()
    axes.legend(loc="lower right")
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()
