"""Sources of classes: the checkpoint's own, typed phrases, examples, or similarity to a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from pages.links import address, link_controls
from pages.links.page_links import CLASSES, ClassesLink, ExploreLink
from pages.looking.controls import example_groups, similarity_classes
from pages.server import access, pass_queue
from pages.server.result_cache import cached, with_bar
from pages.server.uploaded_pictures import Upload
from pages.shared import button_actions, datasets, long_passes
from pages.shared.escape import with_code
from vit.checkpoints import manage
from vit.confidence import figure
from vit.data import datasets as vit_datasets
from vit.errors import UserError
from vit.explain import features, head_census
from vit.explain.classes import examples, text
from vit.images.files import decode
from vit.paths import runs_folder

if TYPE_CHECKING:
    from vit.checkpoints.checkpoint import Checkpoint
    from vit.checkpoints.custom_classes import CustomClasses
    from vit.explain.features import Features
    from vit.model.cost import Size

TYPED, EXAMPLES, SIMILAR = "typed", "examples", "similar"
CLASSIFIERS = {"probe": "linear probe", "neighbours": "neighbours"}
PICTURES, FEW_PICTURES = (100, 300, 1000), 300  # numbers of example pictures of a dataset, and the default
PHRASES = 1000  # characters of a phrase


def names(prefix: str = "") -> tuple[str, ...]:
    """Return the names of all query parameters of a class source."""
    parts = ("from", "text", "template", "data", "pictures", "group", "classifier", "like", "name", "patch")
    return tuple(f"{prefix}{CLASSES}{part}" for part in parts)


def show_stored() -> None:
    """Draw a disabled version of `pick` for the shipped checkpoint, while PyTorch is not loaded."""
    st.segmented_control(
        "Classes", ["the checkpoint's", "examples", "similarity"], default="the checkpoint's", disabled=True
    )


def pick(checkpoint: Checkpoint, prefix: str = "", size: Size | None = None) -> Checkpoint:
    """Draw the controls for the class source, and return the checkpoint with these classes, or unchanged if none.

    Args:
        prefix: prefix of the query parameters, for a page with several sources.
        size: (height, width) of the model's input [px]; None for the checkpoint's own.
    """
    name = f"{prefix}{CLASSES}from"
    sources = {"": "the checkpoint's" if checkpoint.labels else "none"}
    if _reads_text(checkpoint):
        sources[TYPED] = "typed"
    sources |= {EXAMPLES: "examples", SIMILAR: "similarity"}
    source = link_controls.select(
        "Classes",
        name,
        list(sources),
        format_func=sources.get,
        kind=st.segmented_control,
        along={f"{prefix}target": None},
        help="The classes that the model chooses from. Models trained on pictures with texts compare a picture with "
        "phrases that you type. Every model can learn classes from examples, by the features that it computes before "
        "its own head, or measure the similarity of two pictures.",
    )
    if not prefix and source != EXAMPLES:
        button_actions.show_outcome()  # the probe was saved
    if not source:
        return checkpoint
    try:
        if source == SIMILAR:
            own, target = f"{prefix}{CLASSES}", f"{prefix}target"
            custom: CustomClasses | None = similarity_classes.pick(checkpoint, own, target, size, of_pinned=not prefix)
        else:
            custom = (_typed if source == TYPED else _from_examples)(checkpoint, prefix)
    except UserError as error:
        st.error(with_code(str(error)))
        return checkpoint
    if custom is None:
        return checkpoint
    key = "with classes", checkpoint.identity, checkpoint.name, custom.digest
    changed: Checkpoint = cached(key, lambda: checkpoint.with_classes(custom))
    if source == EXAMPLES:
        _show_accuracy(changed, custom, prefix)
    return changed


def pick_folded(checkpoint: Checkpoint, prefix: str) -> Checkpoint:
    """Draw `pick` in a popover."""
    chosen = " ✓" if address.text(f"{prefix}{CLASSES}from") else ""
    with st.popover(f"Classes{chosen}", width="stretch", key=f"{prefix}{CLASSES}group"):
        return pick(checkpoint, prefix)


def _reads_text(checkpoint: Checkpoint) -> bool:
    return not cached(("reads text", checkpoint.identity, str(checkpoint.path)), lambda: text.obstacle(checkpoint))


# --- Typed ----------------------------------------------------------------------------------------------------------


def _typed(checkpoint: Checkpoint, prefix: str) -> CustomClasses | None:
    """Draw the fields for typed phrases, and return their classes; None without phrases."""
    phrases, template = f"{prefix}{CLASSES}text", f"{prefix}{CLASSES}template"
    linked, read = address.texts(phrases), address.text(template) or "{}"

    def type_phrases(lines: str) -> None:
        typed = dict.fromkeys(" ".join(line.split())[:PHRASES] for line in lines.splitlines())
        address.rewrite({phrases: [phrase for phrase in typed if phrase], f"{prefix}target": None})

    def type_template(words: str) -> None:
        address.rewrite({template: words if words.strip() not in ("", "{}") else None})

    left, right = st.columns([3, 2])
    left.text_area(
        "Phrases, one per line",
        "\n".join(linked),
        **link_controls.bound(phrases, "\n".join(linked), type_phrases),
        height=130,
        placeholder="a cat\na dog\na grey wall",
        help="One class each. They are part of the URL, so a link shows the same.",
    )
    right.text_input(
        "Read as",
        read,
        **link_controls.bound(template, read, type_template),
        help="Template for the text tower; the phrase replaces the braces: “a photo of a {}”.",
    )
    if not linked:
        st.caption(
            "Type what the picture may show, and also what it does not show: the probabilities of all phrases sum to 1."
        )
        return None
    custom: CustomClasses = cached(
        ("classes", checkpoint.identity, tuple(linked), read),
        lambda: text.classes_from_text(checkpoint, linked, read),
    )
    return custom


# --- Examples -------------------------------------------------------------------------------------------------------


def _from_examples(checkpoint: Checkpoint, prefix: str) -> CustomClasses | None:
    """Draw the controls for examples, and return classes learned from them; None if there are too few."""
    own = "Your own, in groups"
    titles = {"": own} | {spec: title for spec, title in datasets.here().items()}
    left, right = st.columns(2)
    with left:
        data = link_controls.select(
            "Examples", f"{prefix}{CLASSES}data", list(titles), format_func=titles.get, along={f"{prefix}target": None}
        )
    with right:
        classifier = link_controls.select(
            "Learnt by",
            f"{prefix}{CLASSES}classifier",
            list(CLASSIFIERS),
            format_func=CLASSIFIERS.get,
            help="A linear probe is a logistic regression on the model's features, and can be saved as a checkpoint. "
            "Neighbours: the 20 most similar examples vote.",
        )
    known: Features | None
    facts: dict[str, Any]
    if not data:
        known, facts = _features_of_groups(checkpoint, prefix)
    else:
        with left:
            count = link_controls.select(
                "Pictures",
                f"{prefix}{CLASSES}pictures",
                PICTURES,
                FEW_PICTURES,
                kind=st.segmented_control,
                width="content",
            )
        known, facts = _features_of_dataset(checkpoint, data, count), {"limit": count}
    if known is None:
        return None
    custom: CustomClasses = cached(
        ("classes", checkpoint.identity, known.vectors.tobytes(), known.classes, data, classifier, repr(facts)),
        lambda: examples.classes_from_features(known, data or "pictures", classifier, **facts),
    )
    return custom


def _features_of_dataset(checkpoint: Checkpoint, data: str, count: int) -> Features | None:
    """Compute features of a dataset's training pictures; None if this takes long and was not requested yet."""
    size, root = checkpoint.preprocess.size, datasets.root_of(data)
    key = "features", checkpoint.identity, data, root, datasets.stamp(data), count
    expected = head_census.seconds(checkpoint, checkpoint.preprocess, count)
    if not long_passes.is_wanted(key, count, expected):
        return None

    def compute(progress: Callable[[float], object]) -> Features:
        def report(done: int, total: int) -> None:
            progress(done / total)

        dataset = vit_datasets.load_dataset(data, checkpoint.preprocess, root=Path(root), only="train", at_most=count)
        with pass_queue.reserved(checkpoint, size):  # on the CPU: other sessions use this model object concurrently
            return features.features_of(checkpoint, dataset.train, dataset.classes, count, "cpu", progress=report)

    def work(progress: Callable[[float], object]) -> Features:
        every = repr((*key, datasets.digest(data)))
        return features.stored(every, runs_folder() / ".features", lambda: compute(progress))

    known: Features = with_bar(key, f"Looking at {count:,} pictures…", work)
    return known


def _features_of_groups(checkpoint: Checkpoint, prefix: str) -> tuple[Features | None, dict[str, Any]]:
    """Compute features of pictures in named groups, None for fewer than two groups; also return the file names."""
    groups = example_groups.pick(prefix)
    files: dict[str, list[str]] = {name: [] for name in groups}
    vectors, labels, unreadable = [], [], []
    for number, (name, uploads) in enumerate(groups.items()):
        for one in uploads:
            try:
                vectors.append(_vector(checkpoint, one))
                labels.append(number)
                files[name].append(one.name)
            except UserError as error:
                unreadable.append(f"{one.name}: {error}")
    datasets.show_list("Left out", unreadable)
    if len(set(labels)) < max(2, len(groups)):
        st.caption(
            "Add at least two groups, each with a name and a few pictures: a classifier on the model's features then "
            "separates them."
        )
        return None, {}
    return features.Features(np.stack(vectors), np.array(labels), tuple(groups)), {"groups": files}


def _vector(checkpoint: Checkpoint, upload: Upload) -> Any:
    """Compute the pooled features of a picture: float32 (D,)."""

    def work() -> Any:
        pixels = checkpoint.preprocess(decode.decode_image(upload.data))
        with pass_queue.reserved(checkpoint, checkpoint.preprocess.size):
            return features.pooled_features(checkpoint.model, pixels)[0].float().numpy()

    return cached(("features", checkpoint.identity, upload.key), work)


def _show_accuracy(checkpoint: Checkpoint, custom: CustomClasses, prefix: str) -> None:
    """Show the accuracy of classes from examples, and a form that saves them as a checkpoint."""
    if custom.accuracy is None:
        st.caption("A group with a single picture leaves none to test on. Add more to measure the accuracy.")
    else:
        right = figure(custom.accuracy, custom.facts.get("pictures"), "examples right when held out")
        st.caption(f"{right}, with 95% confidence; a guess reaches {1 / len(custom.names):.0%}.")
    if not access.may_train() or prefix:
        return
    button_actions.show_outcome()  # why the probe was not saved
    if not custom.linear:
        st.caption("Neighbours cannot be kept as a checkpoint; a linear probe can.")
        return
    with st.expander("Keep as a checkpoint"):
        st.text_input("Name", manage.suggest(f"{checkpoint.name}-probe.pt"), key="probe name", help=manage.NAME_HELP)
        st.button("Keep", key="keep probe", type="primary", on_click=_keep, args=(checkpoint,))


def _keep(checkpoint: Checkpoint) -> None:
    """Save the checkpoint under the typed name and open it; a button's callback."""
    name = st.session_state["probe name"]
    if button_actions.attempt(
        "checkpoints", f"{name} is a checkpoint now.", manage.save_with_classes, checkpoint, name
    ):
        address.change(ExploreLink, checkpoint=name, classes=ClassesLink())
