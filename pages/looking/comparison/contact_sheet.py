"""A contact sheet: many pictures with their prediction and map, sorted by a statistic."""

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import streamlit as st
from PIL import Image

from pages.links import address, link_controls, navigation, session
from pages.links.page_links import CompareLink, ExploreLink
from pages.looking import checkpoint_list
from pages.looking.comparison import side_by_side
from pages.looking.controls import class_source, method_choice, picture_files
from pages.server import pass_queue
from pages.server.result_cache import SHOW_DURATION_ABOVE_SECONDS
from pages.shared import bars, datasets, download_buttons, long_passes
from pages.shared.escape import plain, with_code
from vit.checkpoints.abstention import qualified
from vit.checkpoints.checkpoint import Checkpoint
from vit.errors import UserError
from vit.explain.faithfulness_correlation import Verdict
from vit.explain.methods import METHODS
from vit.explain.names import display_name
from vit.explain.settings import Fusion
from vit.exports import tables
from vit.exports.contact_sheet import (
    FEW_PICTURES,
    MASKS,
    SHEET_PICTURES,
    WITHOUT_CLASSES,
    Picture,
    PictureResult,
    classify_and_explain,
    evaluate,
    means,
    measure,
    measuring_seconds,
    pictures_of,
    seconds,
    sort_pictures,
)
from vit.images import samples
from vit.images.encode import encode_image
from vit.view.captions import file_stem, format_duration
from vit.view.prediction import written

SAMPLES, UPLOAD = "samples", "upload"
COUNTS = (FEW_PICTURES, 200, SHEET_PICTURES)  # pictures of a dataset
UPLOADS = 200  # uploaded pictures
PAGE = 60  # pictures drawn at once
FUSED = get_args(Fusion)
ORDERS = {"": "Original order", "confidence": "Confidence", "entropy": "Spread", "faithfulness": "Faithfulness"}
FILTERS = {"": "All", "right": "✓ Right", "wrong": "✗ Wrong"}
TILE = 146  # [px]


class Map(NamedTuple):
    """The map that is drawn over each picture.

    Attributes:
        method: a key of `METHODS`.
        settings: selected settings of the method, as (name, value).
    """

    method: str
    settings: tuple[tuple[str, int | str], ...] = ()


@st.cache_data(show_spinner=False, max_entries=2000)
def cached_result(
    identity: str, digest: str, mask: bytes, map_: Map, _checkpoint: Checkpoint, _picture: Picture
) -> PictureResult:
    """Cached `vit.exports.contact_sheet.classify_and_explain`."""
    with pass_queue.reserved(_checkpoint, _checkpoint.preprocess.size, pass_queue.WITH_GRADIENTS):
        return classify_and_explain(_checkpoint, _picture, map_.method, **dict(map_.settings))


@st.cache_data(show_spinner=False, max_entries=2000)
def cached_measurement(identity: str, digest: str, map_: Map, _checkpoint: Checkpoint, _picture: Picture) -> Verdict:
    """Cached `vit.exports.contact_sheet.measure`."""
    with pass_queue.reserved(_checkpoint, _checkpoint.preprocess.size, pass_queue.WITH_GRADIENTS):
        return measure(_checkpoint, _picture, map_.method, **dict(map_.settings))


@st.cache_resource(show_spinner="Reading the pictures…", max_entries=4)
def read_test_pictures(
    spec: str, root: str, stamp: int, identity: str, count: int, _checkpoint: Checkpoint
) -> list[Picture]:
    """Cached `vit.exports.contact_sheet.pictures_of`."""
    return pictures_of(_checkpoint, spec, Path(root), count)


def show() -> None:
    """Draw the controls and the sheet; stop with a hint if there is no checkpoint."""
    available = checkpoint_list.list_checkpoints()
    if not available.names:
        st.info(checkpoint_list.NO_CHECKPOINT)
        st.stop()
    one, two, three, four = st.columns([3, 3, 3, 1], vertical_alignment="bottom")
    with one:
        name = link_controls.select("Checkpoint", "m_checkpoint", available.names, format_func=available.title)
    with two:
        source = pick_source()
    try:
        with four:
            checkpoint = class_source.pick_folded(side_by_side.open_checkpoint(name, available), "m_")
        with three:
            shown_map = pick_map(checkpoint)
        pictures = chosen_pictures(checkpoint, source)
    except UserError as error:
        st.error(with_code(str(error)))
        return
    if not pictures:
        return
    request = f"{checkpoint.identity} {source} {len(pictures)} {shown_map}"
    results = compute_results(checkpoint, pictures, shown_map, request)
    if not results:
        return
    measures = bool(checkpoint.labels) and pick_faithfulness(checkpoint, min(len(results), PAGE))
    if measures:
        verdicts = session.of(session.Compare).verdicts
        results = [one._replace(verdict=verdicts.get((request, one.picture.digest))) for one in results]
    judged = any(one.correct is not None for one in results)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        orders = [
            "",
            *(["confidence"] if checkpoint.labels else []),
            "entropy",
            *(["faithfulness"] if measures else []),
        ]
        titles = ORDERS | {"confidence": "Value"} if checkpoint.estimates else ORDERS
        order = link_controls.select(
            "Sort by", "m_sort", orders, format_func=titles.get, kind=st.segmented_control, wrap=True
        )
        first = link_controls.select(
            "First",
            "m_first",
            ["highest", "lowest"],
            format_func=str.capitalize,
            kind=st.segmented_control,
            disabled=not order,
        )
        only = ""
        if judged:
            only = link_controls.select(
                "Show", "m_show", list(FILTERS), format_func=FILTERS.get, kind=st.segmented_control
            )
    if judged:
        show_contrast(results)
    elif any(one.picture.truth for one in results):
        st.caption("This checkpoint does not have the classes of these pictures, so none is right or wrong.")
    if only:
        results = [one for one in results if one.correct is (only == "right")]
    if not results:
        st.caption("There is no such picture.")
    results = sort_pictures(results, order, first == "lowest") if order else results
    on_page = pick_page(results)
    captions = draw(on_page, name, source, checkpoint, shown_map)
    stem = file_stem(checkpoint.name, checkpoint.preprocess.size, "sheet")
    download_buttons.numbers("Sheet", lambda: tables.sheet_table(results, checkpoint.estimates), stem)
    if measures and any(one.verdict is None for one in on_page):
        measure_all(checkpoint, on_page, shown_map, request, captions)
        st.rerun()  # to sort by faithfulness, and to show its column


def pick_source() -> str:
    """Draw the control for the source: the samples, uploads, or an available dataset."""
    titles = {SAMPLES: "Samples", UPLOAD: "Your own …"} | {
        spec: f"Test pictures: {title}" for spec, title in datasets.here().items()
    }
    return link_controls.select("Pictures", "m_from", list(titles), format_func=titles.get)


def pick_page(results: Sequence[Any]) -> Sequence[Any]:
    """Return the pictures to draw at once; draw a control if there are more."""
    pages = range(-(-len(results) // PAGE))
    page = 0
    if len(pages) > 1:

        def title(number: int) -> str:
            return f"{number * PAGE + 1} to {min((number + 1) * PAGE, len(results))} of {len(results)}"

        page = link_controls.select("Shown", "m_page", pages, format_func=title, width=180)
    return results[page * PAGE : (page + 1) * PAGE]


def pick_map(checkpoint: Any) -> Map:
    """Draw the controls for the map: the method, and the block and head of attention."""
    method = pick_method(checkpoint)
    if method != "attention":
        return Map(method)
    config, usual = checkpoint.config, METHODS["attention"].settings
    one, other = st.columns(2)
    with one:
        blocks = [*range(config.depth), *FUSED]
        block = link_controls.select(
            "Block", "m_block", blocks, usual["block"] % config.depth, format_func=partial(block_or_head_title, "Block")
        )
    with other:
        heads = [*range(config.heads), *FUSED]
        head = link_controls.select(
            "Head", "m_head", heads, usual["head"], format_func=partial(block_or_head_title, "Head")
        )
    return Map(method, (("block", block), ("head", head)))


def block_or_head_title(kind: str, which: int | str) -> str:
    """Return the title of a block, a head or a fusion."""
    return f"{which.capitalize()} of all" if isinstance(which, str) else display_name(kind, which)


def pick_method(checkpoint: Any) -> str:
    """Draw the control for the method that explains the predicted class."""
    names = list(METHODS) if checkpoint.labels else list(WITHOUT_CLASSES)
    default = "relevance" if checkpoint.labels else names[0]
    return link_controls.select(
        "Map",
        "m_method",
        names,
        default,
        format_func=lambda name: METHODS[name].title,
        help=f"Of the {'first output' if checkpoint.estimates else 'predicted class'}.\n\n"
        + "\n\n".join(f"**{METHODS[name].title}**: {METHODS[name].sentence}" for name in names),
    )


def chosen_pictures(checkpoint: Any, source: str) -> list[Any]:
    """Return the pictures of a source, before any forward pass.

    Raises:
        UserError: the pictures cannot be read.
    """
    if source == SAMPLES:
        return [Picture(sample.title, samples.read(sample.name)) for sample in samples.SAMPLES.values()]
    if source != UPLOAD:
        count = link_controls.select("How many", "m_count", COUNTS, kind=st.segmented_control)
        root, stamp = datasets.root_of(source), datasets.stamp(source)
        return read_test_pictures(source, root, stamp, checkpoint.identity, count, checkpoint)
    pictures = picture_files.pick(UPLOADS, "m_upload", "m_pictures")
    with st.popover("Masks", width="content", help="Measure how much of each map is inside a region."):
        st.caption("One for each picture, with its name and any ending: black outside the region.")
        masks = {Path(one.name).stem: one.data for one in picture_files.pick(UPLOADS, "m_masks")}
    return [Picture(one.name, one.data, region=masks.get(Path(one.name).stem)) for one in pictures]


def compute_results(checkpoint: Any, pictures: Sequence[Any], shown_map: Map, request: str) -> list[Any]:
    """Compute or look up the result of every picture; list unreadable ones."""
    if not long_passes.is_wanted(request, len(pictures), seconds(checkpoint, len(pictures))):
        return []
    bar, results, unreadable = st.progress(0.0), [], []
    for done, picture in enumerate(pictures):
        bar.progress(done / len(pictures), f"Picture {done + 1} of {len(pictures)}")
        try:
            mask = picture.region if isinstance(picture.region, bytes) else b""
            outcome = cached_result(checkpoint.identity, picture.digest, mask, shown_map, checkpoint, picture)
            results.append(evaluate(checkpoint, picture, outcome))
        except UserError as error:
            unreadable.append(f"{picture.name}: {error}")
    bar.empty()
    if unreadable:
        st.error(
            "A picture could not be read." if len(unreadable) == 1 else f"{len(unreadable)} pictures could not be read."
        )
        datasets.show_list("Left out", unreadable)
    return results


def pick_faithfulness(checkpoint: Any, count: int) -> bool:
    """Draw the toggle for measuring faithfulness, which takes longer than computing the maps."""
    expected = measuring_seconds(checkpoint, count)
    return link_controls.toggle(
        f"Measure faithfulness ({format_duration(expected)})"
        if expected > SHOW_DURATION_ABOVE_SECONDS
        else "Measure faithfulness",
        "m_true",
        help="Masks random parts of each picture, and correlates the drop of the class with the map's weight on them.",
    )


def measure_all(checkpoint: Any, results: Sequence[Any], shown_map: Map, request: str, captions: Sequence[Any]) -> None:
    """Measure the faithfulness of maps one by one; finished results are kept if the visitor leaves."""
    bar = st.progress(0.0)
    for done, (one, caption) in enumerate(zip(results, captions, strict=True)):
        bar.progress(done / len(results), f"Map {done + 1} of {len(results)}: taking parts of the picture away…")
        verdict = cached_measurement(checkpoint.identity, one.picture.digest, shown_map, checkpoint, one.picture)
        session.of(session.Compare).verdicts[request, one.picture.digest] = verdict
        caption.caption(lines_of(one._replace(verdict=verdict)))
    bar.empty()


def show_contrast(results: Sequence[Any]) -> None:
    """Compare statistics of correctly and wrongly classified pictures."""
    measured = all(one.verdict for one in results)
    lines = ["| | Pictures | Confidence | Spread |", "|---|---|---|---|"]
    if measured:
        lines = [f"{line}{more}|" for line, more in zip(lines, (" Faithfulness ", "---"), strict=True)]
    for title, right in (("✓ Right", True), ("✗ Wrong", False)):
        if average := means([one for one in results if one.correct is right]):
            figures = f"{average.confidence:.0%} | {average.entropy:.2f}"
            if measured and average.faithfulness is not None:
                figures += f" | {bars.number(average.faithfulness)}"
            lines.append(f"| {title} | {average.pictures} | {figures} |")
    st.markdown("\n".join(lines))


def facts_of(one: Any) -> list[str]:
    """Return the lines below a picture."""
    result, picture = one.result, one.picture
    facts = [picture.name] if picture.name else []
    facts += [f"is {picture.truth}"] if picture.truth and not one.correct else []
    facts.append(f"spread {result.entropy:.2f}")
    if region := result.region:
        where = "inside" if region.pointing else "outside"
        facts.append(f"in the region {region.energy:.0%} (chance {region.area:.0%}), maximum {where}")
    if one.verdict:
        facts.append(f"faithful {bars.number(one.verdict.correlation)}: {one.verdict.label.removesuffix(' yet')}")
    return facts


def lines_of(one: Any) -> str:
    """Return the caption of a tile as markdown, one fact a line; its text is escaped."""
    return "  \n".join(map(plain, facts_of(one)))


def draw(results: Sequence[Any], name: str, source: str, checkpoint: Any, shown_map: Map) -> list[Any]:
    """Draw the tiles, and return the placeholder of each caption."""
    captions = []
    names = {sample.title: sample.name for sample in samples.SAMPLES.values()}
    with st.container(horizontal=True):
        for number, one in enumerate(results):
            result, picture = one.result, one.picture
            with st.container(width=TILE, gap=None):
                width, height = Image.open(io.BytesIO(result.thumbnail)).size
                with st.container(height=math.ceil(TILE * height / width), border=False):  # before the browser has it
                    st.image(result.thumbnail, width=TILE, alt=f"{picture.name} {result.label}".strip() or "A picture")
                mark = {True: "✓ ", False: "✗ ", None: ""}[one.correct]
                if result.confidence is not None:
                    label = plain(qualified(result.label, result.sure))
                    st.markdown(f"**{mark}{label}** {written(checkpoint, result.confidence, '.0%')}")
                captions.append(st.empty())
                captions[-1].caption(lines_of(one))
                if source == SAMPLES:
                    link = replace(link_to(name, checkpoint, shown_map), sample=names[picture.name])
                    navigation.link("Open in Explore", "explore", link.to_query(), icon=False)
                elif (content := file_of(picture, checkpoint)) and st.button(
                    "Open in Explore", key=f"open {number}", type="tertiary"
                ):
                    title = picture.name or f"{picture.truth}.png"
                    navigation.open_picture(title, content, link_to(name, checkpoint, shown_map))
    caption = "Spread: entropy of the answer's attention in the last block, 0 for a single token, 1 for uniform."
    if any(one.result.region for one in results):
        caption += " In the region: share of the map's positive values; chance is the region's share of the picture."
    if any(one.verdict for one in results):
        caption += (
            f" Faithful: correlation of the map's weight on random parts of the picture with the drop of the class "
            f"without them, by {MASKS} masks; chance is what shifted copies of the map reach."
        )
    st.caption(caption)
    if source == SAMPLES:
        st.caption("; ".join(f"{one.title}: {one.credit}, {one.licence}" for one in samples.SAMPLES.values()))
    return captions


def link_to(name: str, checkpoint: Any, shown_map: Map) -> ExploreLink:
    """Return the link that opens the sheet's map on page Explore."""
    link = ExploreLink(checkpoint=name, classes=address.read(CompareLink).sheet.classes)
    method, chosen = shown_map.method, {name: str(value) for name, value in shown_map.settings}
    if method in method_choice.methods_for(checkpoint):
        return replace(link, method=method, viewer={"view": "relevance", **chosen})
    return replace(link, viewer={"view": method, **chosen})


def file_of(picture: Any, checkpoint: Any) -> bytes:
    """Return a picture as a file for page Explore; b"" if the model would read it differently there."""
    if isinstance(picture.content, bytes):
        return picture.content
    bands = picture.content.permute(1, 2, 0).numpy()
    image = Image.fromarray(bands if bands.shape[2] == 3 else bands[..., 0])
    whole = tuple(checkpoint.preprocess.geometry(image).box) == (0, 0, *image.size)
    return encode_image(image, "PNG") if whole else b""
