"""The commands that measure a checkpoint on a dataset: evaluate, faithfulness, features, heads."""

import argparse
import json

import torch
from torch import Tensor

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import check_card, record_facts
from vit.cli.classes import load_with_classes
from vit.cli.documents import facts_of
from vit.confidence import figure, share, wilson
from vit.data.folders import UNLABELLED
from vit.errors import InvalidConfig, UserError
from vit.explain import features, head_census, method_ranking
from vit.progress import pictures_bar
from vit.training.loop.calibration import LEAST_PICTURES, calibrate
from vit.training.loop.evaluation import evaluate_checkpoint
from vit.training.runs.error_search import write
from vit.untrusted import counted


def run_evaluate(options: argparse.Namespace) -> None:
    """Measure a checkpoint's accuracy."""
    if options.report and not options.report.parent.is_dir():
        raise InvalidConfig(f"--report takes a file in a folder that exists, not {options.report}.")
    checkpoint = load_with_classes(options)
    seen: list[tuple[Tensor, Tensor]] = []
    if options.card:
        check_card(checkpoint)
        if checkpoint.model.activation != "softmax":
            raise UserError(f"{checkpoint.name} does not choose one of its own classes, so it has no sure answers.")
    if options.report:
        _, result = write(checkpoint, options.data, options.data_root, options.report, bar=not options.json)
    else:
        result = evaluate_checkpoint(
            checkpoint,
            options.data,
            root=options.data_root,
            bar=not options.json,
            observe=lambda images, labels, logits: seen.append((logits.cpu(), labels.cpu())) if options.card else None,
        )
    if options.json:
        facts = facts_of(checkpoint) | {"data": options.data}
        right = round(result.accuracy * result.pictures)
        print(json.dumps(facts | result._asdict() | {"right": right, "interval": wilson(right, result.pictures)}))
    else:
        balanced = share(result.balanced or 0.0, result.pictures)
        print(
            f"{figure(result.accuracy, result.pictures, 'pictures right')}, {balanced} in the mean over the classes, "
            f"loss {result.loss:.4f}"
        )
        if result.remark:
            print(result.remark)
    if options.card:
        _record_threshold(checkpoint, options, *(torch.cat(each) for each in zip(*seen, strict=True)))


def _record_threshold(checkpoint: Checkpoint, options: argparse.Namespace, logits: Tensor, labels: Tensor) -> None:
    """Write into a checkpoint's card from which logit its answers are sure; the weights stay as they are."""
    found = calibrate(logits, labels, temperature=1.0)
    if found is None:
        raise UserError(f"{len(labels)} pictures are too few for a threshold; it takes {LEAST_PICTURES}.")
    facts = found.facts(f"test ({options.data})")
    record_facts(checkpoint, facts)
    if not options.json:
        print(f"Sure from a logit of {found.threshold:.4g}: {facts['sure_on']}.")


def run_faithfulness(options: argparse.Namespace) -> None:
    """Rank the methods by the faithfulness of their maps."""
    _check_limit(options.limit)
    checkpoint = load_with_classes(options)
    if options.card:
        check_card(checkpoint)
    ranked = method_ranking.rank(checkpoint, options.data, options.limit, root=options.data_root, bar=not options.json)
    if options.json:
        facts = facts_of(checkpoint) | {"data": options.data}
        print(json.dumps(facts | {"pictures": ranked[0].pictures, "methods": [one.to_dict() for one in ranked]}))
    else:
        print("\n".join(method_ranking.table(ranked)))
        print(f"\n{ranked[0].pictures} pictures. {method_ranking.verdict(ranked)}")
    if options.card:  # last, so that a card that cannot be written costs no result
        method_ranking.record_in_card(checkpoint, options.data, ranked)


def run_features(options: argparse.Namespace) -> None:
    """Save the model's features of pictures, its output before the head."""
    _check_limit(options.limit)
    if options.out.suffix.lower() != ".npz" or not options.out.parent.is_dir():
        raise InvalidConfig(f"--out takes a file that ends in .npz, in a folder that is there, not {options.out}.")
    checkpoint = load_checkpoint(options.checkpoint)
    extracted = features.features(checkpoint, options.data, options.limit, root=options.data_root, bar=not options.json)
    try:
        features.save(extracted, options.out)
    except OSError as error:
        raise UserError(f"{options.out} cannot be written: {error.strerror}.") from error
    pictures, numbers = extracted.vectors.shape
    if options.json:
        facts = facts_of(checkpoint) | {"data": options.data}
        print(json.dumps(facts | {"pictures": pictures, "numbers": numbers, "file": str(options.out)}))
        return
    known = "" if extracted.classes == (UNLABELLED,) else f" of {len(extracted.classes)} classes"
    print(f"{counted(pictures, 'picture')}{known}, {numbers:,} numbers each: {options.out}")


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise UserError(f"--limit must be at least 1, not {limit}.")


def run_heads(options: argparse.Namespace) -> None:
    """Measure every head's statistics and print a table."""
    _check_limit(options.limit)
    checkpoint = load_checkpoint(options.checkpoint)
    head_census.check_name(checkpoint, options.statistic)
    if options.card:
        check_card(checkpoint)
    tally = head_census.census(
        checkpoint, options.data, options.limit, root=options.data_root, progress=pictures_bar(not options.json)
    )
    statistics = tally.statistics()
    statistic = statistics[options.statistic]
    if options.json:
        facts = facts_of(checkpoint) | {"data": options.data}
        artefacts = method_ranking.interval(torch.tensor(tally.artefacts))._asdict()
        facts |= {"pictures": statistic.pictures, "artefacts": artefacts}
        print(json.dumps(facts | {"statistics": head_census.to_dict(statistics)}))
    else:
        print("\n".join(head_census.table(options.statistic, statistic)))
        print(f"\n{head_census.sentence(options.statistic, statistic)}")
        print(head_census.artefacts_sentence(tally.artefacts))
        print("Blocks and heads count from 1, as on the page; in Python, options, links and files from 0.")
    if options.card:
        head_census.record_in_card(checkpoint, options.data, statistics)
