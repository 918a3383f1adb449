"""Options that replace a checkpoint's classes: --text, --examples and --like."""

import argparse
import sys

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.custom_classes import CustomClasses
from vit.checkpoints.load import load_checkpoint
from vit.cli.pictures import preprocess_of_size, read_picture
from vit.confidence import figure
from vit.errors import InvalidConfig
from vit.explain.classes import examples, similarity, text


def load_with_classes(options: argparse.Namespace) -> Checkpoint:
    """Load the checkpoint, with the classes that the options request.

    Raises:
        UserError: options exclude each other, or the checkpoint does not support such classes.
    """
    sources = [name for name in ("text", "examples", "like") if getattr(options, name)]
    if len(sources) > 1:
        raise InvalidConfig(f"Classes come from --{sources[0]} or from --{sources[1]}, not from both.")
    if options.like_patch and not options.like:
        raise InvalidConfig("--like-patch needs --like, the picture of the patch.")
    if options.template is not None and not options.text:
        raise InvalidConfig("--template needs --text.")
    if options.classifier and not options.examples:
        raise InvalidConfig("--classifier needs --examples with a folder or a dataset.")
    if sources and getattr(options, "card", False):
        raise InvalidConfig(
            "--card writes into the card of a checkpoint what is measured with its own classes. Leave it out, or keep "
            "a probe as a checkpoint on page Explore first."
        )
    checkpoint = load_checkpoint(options.checkpoint)
    if options.text:
        return checkpoint.with_classes(text.classes_from_text(checkpoint, options.text, options.template or "{}"))
    if options.like:
        return checkpoint.with_classes(_class_by_similarity(checkpoint, options))
    if not options.examples:
        return checkpoint
    custom = examples.classes_from_examples(
        checkpoint, options.examples, options.classifier or "probe", root=options.data_root, bar=True
    )
    print(_accuracy_sentence(custom), file=sys.stderr)
    return checkpoint.with_classes(custom)


def _class_by_similarity(checkpoint: Checkpoint, options: argparse.Namespace) -> CustomClasses:
    """Return classes by similarity to the picture of --like, or to its patch --like-patch."""
    patch = None
    if options.like_patch:
        try:
            row, col = map(int, options.like_patch.split(","))
        except ValueError:
            raise InvalidConfig(f"--like-patch is ROW,COL, as in 3,4, not {options.like_patch!r}.") from None
        patch = row, col
    size, at = preprocess_of_size(options, checkpoint).size, f" at {options.like_patch}" if patch else ""
    name = f"like {options.like.name}{at}"
    return similarity.class_from_picture(
        checkpoint, read_picture(options.like, options.stretch), patch, name, size=size
    )


def _accuracy_sentence(custom: CustomClasses) -> str:
    """Return a sentence about the estimated accuracy of classes learnt from examples."""
    if custom.accuracy is None:
        return f"Classes by {custom.source}. A class with a single picture leaves none to test on."
    right = figure(custom.accuracy, custom.facts.get("pictures"), "pictures right when held out")
    return f"Classes by {custom.source}: {right}."
