"""One dataclass per page with its query parameters. For page Train, see `pages.training.train_form.form`.

Pages check themselves whether a checkpoint or class exists.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, ClassVar

from pages.links.grammar import Heads, Names, PageLink
from vit.view.selection import Selection

_VIEWER = tuple(one.name for one in fields(Selection))
_VIEWERS = tuple(name for name in _VIEWER if name not in ("view", "hidden"))  # shared by two viewers


@dataclass(frozen=True, kw_only=True)
class ClassesLink(PageLink):
    """Classes from outside a checkpoint, see `pages.looking.controls.class_source`.

    Attributes:
        source: "" for the checkpoint's own classes, else typed phrases, examples, or similarity to a picture.
        phrases, template: the typed phrases and the prompt template.
        data: dataset with examples, "" for groups of uploaded pictures.
        pictures: number of pictures of the dataset.
        groups: groups of pictures, each as "KEY NAME".
        classifier: how the classifier is trained.
        like, name: a sample, or the key of an uploaded picture and its file name.
        patch: patch of that picture as ROW,COL; "" for the whole picture.
    """

    source: Annotated[str, "from"] = ""
    phrases: Annotated[Names, "text"] = ()
    template: str = ""
    data: str = ""
    pictures: str = ""
    groups: Annotated[Names, "group"] = ()
    classifier: str = ""
    like: str = ""
    name: str = ""
    patch: str = ""


CLASSES = "classes_"  # prefix of the parameters of ClassesLink


def best_of_run(run_id: str) -> str:
    """Return the name of a run's best checkpoint in links."""
    return f"run-{run_id}"


@dataclass(frozen=True, kw_only=True)
class ExploreLink(PageLink):
    """Link of page Explore.

    Attributes:
        checkpoint, heads: the checkpoint, and its number of attention heads if its files do not contain it.
        size: input size of the model [px], as `input_size.pixels` formats it.
        precision: "" for float32.
        sample, upload, picture, frame: the picture: a sample, or the name and key of an upload, and its frame from 1.
        stretch: stretch grey levels to the full range.
        pictures: key of several uploaded pictures, of which `picture` is one.
        classes: classes from outside the checkpoint.
        target, method: the explained class, and the explanation method.
        against: the class that the explained one is compared with; "" for none.
        panel: the panel below the viewer.
        over, statistic: panel Heads: the set of pictures and the statistic.
        curves, ranking: panel *Faithfulness*: which further results to show.
        off, instead, baseline, probe: panel *Ablation*: ablated heads and their replacement, the replacement of hidden
            patches, and whether the patch under the pointer is replaced.
        register: panel Layers: add a register at test time.
        features_block, features_with, features_pictures, foreground, features_blocks: panel Features: the block, the
            pictures that share a basis, the key of own pictures, only the foreground, and all blocks.
        viewer: see `vit.view.selection.Selection`.
    """

    page: ClassVar[str] = "explore"

    checkpoint: str = ""
    heads: int | None = None
    size: str = ""
    precision: str = ""
    sample: str = ""
    upload: str = ""
    picture: str = ""
    pictures: str = ""
    frame: int | None = None
    stretch: bool = False
    classes: Annotated[ClassesLink, CLASSES] = ClassesLink()
    target: str = ""
    against: str = ""
    method: str = ""
    panel: str = ""
    over: str = ""
    statistic: str = ""
    curves: bool = False
    ranking: bool = False
    off: Heads = ()
    instead: str = ""
    baseline: str = ""
    probe: bool = False
    register: bool = False
    features_block: str = ""
    features_with: str = ""
    features_pictures: str = ""
    foreground: bool = False
    features_blocks: bool = False
    viewer: Annotated[Mapping[str, str], _VIEWER] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SideLink(PageLink):
    """One side of page Compare.

    Attributes:
        source: a checkpoint, or an epoch of a run.
        checkpoint, sample, picture, which, size: for a checkpoint: a sample, or the key of uploads and the index of
            one of them from 1, and the input size.
        run, example, epoch: for a run: one of its pictures, after an epoch.
        classes: classes from outside the checkpoint.
        target, method: the explained class, and the explanation method.
        view: see `vit.view.selection.Selection`.
    """

    source: Annotated[str, "from"] = ""
    checkpoint: str = ""
    sample: str = ""
    picture: str = ""
    which: int | None = None
    size: str = ""
    run: str = ""
    example: Annotated[str, "probe"] = ""
    epoch: str = ""
    classes: Annotated[ClassesLink, CLASSES] = ClassesLink()
    target: str = ""
    method: str = ""
    view: str = ""


@dataclass(frozen=True, kw_only=True)
class SheetLink(PageLink):
    """A contact sheet.

    Attributes:
        checkpoint, source, count, pictures: the checkpoint, the source and number of pictures, and the key of uploads.
        method, block, head: the method, and the block and head for attention.
        classes: classes from outside the checkpoint.
        order, first, show: sort key, sort direction, and filter.
        part: which part of many pictures is drawn, from 0.
        true: measure faithfulness of the maps.
    """

    checkpoint: str = ""
    source: Annotated[str, "from"] = ""
    count: str = ""
    pictures: str = ""
    classes: Annotated[ClassesLink, CLASSES] = ClassesLink()
    method: str = ""
    block: str = ""
    head: str = ""
    order: Annotated[str, "sort"] = ""
    first: str = ""
    show: str = ""
    part: Annotated[str, "page"] = ""
    true: bool = False


@dataclass(frozen=True, kw_only=True)
class CompareLink(PageLink):
    """Link of page Compare.

    Attributes:
        mode: two side by side, or many pictures.
        a, b: the left and the right side.
        apart: the right side has its own picture, class and view.
        sheet: the contact sheet of many pictures.
        viewer: the selection that both viewers share, as the left one shows it.
    """

    page: ClassVar[str] = "compare"

    mode: str = ""
    a: Annotated[SideLink, "a_"] = SideLink()
    b: Annotated[SideLink, "b_"] = SideLink()
    apart: bool = False
    sheet: Annotated[SheetLink, "m_"] = SheetLink()
    viewer: Annotated[Mapping[str, str], _VIEWERS] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunsLink(PageLink):
    """Link of page Runs.

    Attributes:
        runs: ids of the selected runs.
        search: id of the search whose runs are listed.
        view: tab of a single run.
        against: x axis for the curves of several runs.
        curves: see `pages.training.run_views.curves.View`.
    """

    page: ClassVar[str] = "runs"

    runs: Annotated[Names, "run"] = ()
    search: str = ""
    view: str = ""
    against: str = ""
    curves: Annotated[Mapping[str, str], ("smoothing", "log", "epochs", "minutes")] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CheckpointsLink(PageLink):
    """Link of page Checkpoints.

    Attributes:
        name: the selected checkpoint.
        fetch: initial text of the form that fetches a checkpoint.
    """

    page: ClassVar[str] = "checkpoints"

    name: str = ""
    fetch: str = ""
