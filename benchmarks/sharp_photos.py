"""Measure a checkpoint's answers on photos that are named by their WordNet id, such as "n02093428 terrier.jpg".

    python benchmarks/sharp_photos.py FOLDER [--checkpoint everyday]

The checkpoint's folder has a classes.csv with the columns class and wordnet: one line for each id that a class stands
for. Photos of other ids are of things that the checkpoint does not know. It prints, with 95% intervals: how often the
first answer, and one of the first three, is right, over photos and as the mean over classes; how often an answer is
sure, and right then; how often an unknown thing is answered with "not sure"; and the commonest mistakes.
"""

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import vit
from vit.checkpoints.abstention import is_sure
from vit.confidence import wilson


def share(hits: Sequence[bool]) -> str:
    if not hits:
        return "no photos"
    low, high = wilson(sum(hits), len(hits))
    return f"{np.mean(hits):.1%} ({sum(hits)} of {len(hits)}, 95%: {low:.1%} to {high:.1%})"


def class_mean(truths: Sequence[str], hits: Sequence[bool]) -> str:
    """Describe the mean over classes of the share of hits, with a normal interval."""
    each = [np.mean([hit for one, hit in zip(truths, hits, strict=True) if one == name]) for name in set(truths)]
    return f"mean over {len(each)} classes {np.mean(each):.1%} (+- {1.96 * np.std(each) / len(each) ** 0.5:.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--checkpoint", default="everyday")
    arguments = parser.parse_args()
    checkpoint = vit.load_checkpoint(arguments.checkpoint)
    with open(checkpoint.path / "classes.csv", encoding="utf-8", newline="") as file:
        class_of = {row["wordnet"]: row["class"] for row in csv.DictReader(file)}
    answers = []  # (class, "" for things that it does not know; the three most probable classes; whether it is sure)
    for path in sorted(arguments.folder.glob("n*.jpg")):
        with torch.inference_mode():
            logits = checkpoint.model(checkpoint.preprocess(vit.decode_image(path.read_bytes()))).logits[0]
        named = [checkpoint.labels[index] for index in logits.topk(3).indices.tolist()]
        sure = is_sure(float(logits.max()), checkpoint.facts) is not False
        answers.append((class_of.get(path.name.split()[0], ""), named, sure))
    known = [(truth, named, sure) for truth, named, sure in answers if truth]
    for count in (1, 3):
        hits = [truth in named[:count] for truth, named, _ in known]
        print(f"top-{count}: {share(hits)};", class_mean([truth for truth, *_ in known], hits))
    print("sure:", share([sure for *_, sure in known]))
    print("right when sure:", share([truth == named[0] for truth, named, sure in known if sure]))
    print("unknown things not sure:", share([not sure for truth, _, sure in answers if not truth]))
    mistakes = Counter(f"{truth} is called {named[0]}" for truth, named, _ in known if named[0] != truth)
    print("mistakes:", ", ".join(f"{what} ({times})" for what, times in mistakes.most_common(12)))


if __name__ == "__main__":
    main()
