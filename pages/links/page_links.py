"""What each page's link says, as one dataclass for each page; page Train's is a form, see `pages.train_form.form`.

Whether there is such a checkpoint or class is for the page to find out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, ClassVar

from pages.links.grammar import Heads, Names, PageLink
from vit.view.selection import Selection

_VIEWER = tuple(one.name for one in fields(Selection))
_VIEWERS = tuple(name for name in _VIEWER if name not in ("view", "hidden"))  # what two viewers share


@dataclass(frozen=True, kw_only=True)
class ClassesLink(PageLink):
    """Of classes from outside a checkpoint, see `pages.looking.class_source`.

    Attributes:
        source: "" for the checkpoint's own, typed phrases, examples, or likeness to a picture.
        phrases, template: what was typed, and how it is read.
        data: a dataset to learn from, "" for groups of pictures.
        pictures: how many of the dataset.
        groups: of pictures, each the key of its pictures, a space, and its name.
        classifier: how is learnt from them.
        like, name: a sample, or the key of an uploaded picture and what its file was called.
        patch: of it, as ROW,COL; "" for the whole picture.
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


CLASSES = "classes_"  # where the names of these begin


def best_of_run(run_id: str) -> str:
    """What the best checkpoint of a run is called in links."""
    return f"run-{run_id}"


@dataclass(frozen=True, kw_only=True)
class ExploreLink(PageLink):
    """Of page Explore.

    Attributes:
        checkpoint, heads: what was chosen, and how many attention heads it has, where its files do not say.
        size: of the model's input [px], as `loading.pixels` writes it.
        precision: "" for float32.
        sample, upload, picture, frame: the picture: a sample, or the name and key of an upload, and its frame from 1.
        stretch: it is drawn over the whole range of its values.
        pictures: the key of several that were uploaded, this one among them.
        classes: where they come from, if not from the checkpoint.
        target, method: the class, and how it is explained.
        panel: what is below the viewer.
        over, statistic: of its panel Heads: over what, and of what.
        curves, ranking: of its panel *Is it true?*: what else is shown.
        off, instead, baseline, probe: of its panel *What if?*: heads that are off and what they give instead, what
            hidden patches become, and whether the patch under the pointer is replaced.
        register: of its panel Layers: a register is added at test time.
        features_block, features_with, features_pictures, foreground, features_blocks: of its panel Features: after
            which block, in one basis with what, the key of own pictures, of the foreground alone, and all blocks.
        tour: the step of the tour, from 1.
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
    tour: int | None = None
    viewer: Annotated[Mapping[str, str], _VIEWER] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SideLink(PageLink):
    """Of one side of page Compare.

    Attributes:
        source: a checkpoint, or an epoch of a run.
        checkpoint, sample, picture, which, size: of a checkpoint: with a sample, or the key of uploads, and which of
            them, from 1.
        run, example, epoch: of a run: which of its pictures, after which epoch.
        classes: where they come from, if not from the checkpoint.
        target, method: the class, and how it is explained.
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
    """Of a contact sheet.

    Attributes:
        checkpoint, source, count, pictures: what looks at which pictures, and how many; the key of those that were
            uploaded.
        method, block, head: the map; of attention, whose.
        classes: where they come from, if not from the checkpoint.
        order, first, show: in which order they stand, from which end, and which of them.
        part: of many pictures, those that are drawn at once, from 0.
        true: whether their maps are true is measured.
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
    """Of page Compare.

    Attributes:
        mode: two side by side, or many pictures.
        a, b: the left and the right side.
        apart: the right side has a picture, class and view of its own.
        sheet: of the many pictures.
        viewer: of both viewers, as the left one shows it.
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
    """Of page Runs.

    Attributes:
        runs: the ids of those that are shown.
        search: the id of the search that is shown, where no runs are.
        view: of one run.
        against: what the curves of several are drawn against.
        curves: see `pages.run_views.curves.View`.
    """

    page: ClassVar[str] = "runs"

    runs: Annotated[Names, "run"] = ()
    search: str = ""
    view: str = ""
    against: str = ""
    curves: Annotated[Mapping[str, str], ("smoothing", "log", "epochs", "minutes")] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CheckpointsLink(PageLink):
    """Of page Checkpoints.

    Attributes:
        name: of the checkpoint that is selected.
        fetch: what the form to fetch one begins with.
    """

    page: ClassVar[str] = "checkpoints"

    name: str = ""
    fetch: str = ""
