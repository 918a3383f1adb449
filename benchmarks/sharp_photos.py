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
from typing import NamedTuple

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import vit
from vit.checkpoints.abstention import is_sure
from vit.explain.confidence import wilson


class Answer(NamedTuple):
    """The answer to one photo.

    Attributes:
        truth: the class; "" for a thing that the checkpoint does not know.
        named: the most probable classes, three at most.
        sure: whether the first is a sure answer.
    """

    truth: str
    named: tuple[str, ...]
    sure: bool


def share(hits: Sequence[bool]) -> str:
    if not hits:
        return "no photos"
    low, high = wilson(sum(hits), len(hits))
    return f"{np.mean(hits):.1%} ({sum(hits)} of {len(hits)}, 95%: {low:.1%} to {high:.1%})"


def class_mean(known: Sequence[Answer], count: int) -> str:
    """Describe the mean over classes of how often the truth is among the first `count`, with a normal interval."""
    hits: dict[str, list[bool]] = {}
    for one in known:
        hits.setdefault(one.truth, []).append(one.truth in one.named[:count])
    each = [np.mean(one) for one in hits.values()]
    return f"mean over {len(each)} classes {np.mean(each):.1%} (+- {1.96 * np.std(each) / len(each) ** 0.5:.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--checkpoint", default="everyday")
    arguments = parser.parse_args()
    checkpoint = vit.load_checkpoint(arguments.checkpoint)
    with open(checkpoint.path / "classes.csv", encoding="utf-8", newline="") as file:
        class_of = {row["wordnet"]: row["class"] for row in csv.DictReader(file)}
    answers = []
    for path in sorted(arguments.folder.glob("n*.jpg")):
        with torch.inference_mode():
            logits = checkpoint.model(checkpoint.preprocess(vit.decode_image(path.read_bytes()))).logits[0]
        top = checkpoint.model.probabilities(logits).topk(3)
        named = tuple(checkpoint.labels[index] for index in top.indices.tolist())
        sure = is_sure(float(logits.max()), checkpoint.facts) is not False
        answers.append(Answer(class_of.get(path.name.split()[0], ""), named, sure))
    known = [one for one in answers if one.truth]
    for count in (1, 3):
        print(f"top-{count}: {share([one.truth in one.named[:count] for one in known])};", class_mean(known, count))
    print("sure:", share([one.sure for one in known]))
    print("right when sure:", share([one.truth == one.named[0] for one in known if one.sure]))
    print("unknown things not sure:", share([not one.sure for one in answers if not one.truth]))
    mistakes = Counter(f"{one.truth} is called {one.named[0]}" for one in known if one.named[0] != one.truth)
    print("mistakes:", ", ".join(f"{what} ({times})" for what, times in mistakes.most_common(12)))


if __name__ == "__main__":
    main()
