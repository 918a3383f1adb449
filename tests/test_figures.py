"""Figures for print: size, colours, and text as text."""

import base64
import io
import re
import zlib
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from vit.checkpoints.checkpoint import Checkpoint
from vit.explain.recorded_pass import RecordedPass
from vit.exports.figures import DPI, caption, grid_figure, grid_sentence, map_figure, shared_picture
from vit.images.encode import encode_image
from vit.images.preprocess import Preprocess
from vit.view.explanation import Explanation, explain
from vit.view.map_view import MapView, shared_top
from vit.view.overlay import COLORMAPS
from vit.view.selection import Selection

pytestmark = pytest.mark.slow

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "\x00\x1b\ud800</text><script>alert(1)</script> $\\frac{$ & <b> \U0001f600 照片.jpg"


@pytest.fixture
def explanation(checkpoint: Checkpoint) -> Explanation:
    return explained(checkpoint, 100, 50)


def explained(checkpoint: Checkpoint, width: int, height: int) -> Explanation:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return explain(checkpoint, encode_image(Image.fromarray(pixels)))


def figure(explanation: Explanation, selection: Selection, facts: str = "Facts.", **options: Any) -> bytes:
    view = MapView.of(explanation.record, selection, explanation.payload)
    return map_figure(explanation, selection, view, facts, **options)


def text_of(svg: bytes) -> str:
    return " ".join("".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text"))


@pytest.mark.parametrize("width", [85, 180])
def test_figure_has_the_width_of_its_column_at_300_dpi(explanation: Explanation, width: float) -> None:
    picture = Image.open(io.BytesIO(figure(explanation, Selection(), width=width)))
    assert picture.width == pytest.approx(width / 25.4 * DPI, abs=1)
    assert picture.info["dpi"][0] == pytest.approx(DPI, abs=1)
    across = ElementTree.fromstring(figure(explanation, Selection(), width=width, kind="svg")).get("width")
    assert across and float(across.removesuffix("pt")) == pytest.approx(width / 25.4 * 72, abs=0.1)


def embedded(svg: bytes) -> list[np.ndarray]:
    """Return the embedded pictures."""
    result = []
    for image in ElementTree.fromstring(svg).iter(f"{SVG}image"):
        address = image.get("{http://www.w3.org/1999/xlink}href") or ""
        result.append(np.asarray(Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))).convert("RGB")))
    return result


def test_second_picture_is_the_first_under_the_map(explanation: Explanation) -> None:
    selection = Selection(block=1, head=0, token=3, opacity=1.0, cover="film", colormap="cividis")
    plain, under = embedded(figure(explanation, selection, kind="svg"))[:2]
    assert plain.shape == under.shape
    side = plain.shape[0]
    left = (plain.shape[1] - side) // 2  # the model sees the square in the middle
    view = MapView.of(explanation.record, selection, explanation.payload)
    levels = np.clip(explanation.record.heatmap(view.weights).numpy() / view.top, 0, 1) * 255
    centres = ((np.arange(4) + 0.5) * side / 4).astype(int)
    colours = under[centres][:, left + centres].astype(int)
    assert np.abs(colours - COLORMAPS["cividis"][np.rint(levels).astype(int)]).max() <= 3
    assert np.abs(plain.astype(int) - under.astype(int)).max() > 50


@pytest.mark.parametrize("contour", ["mass", "otsu"])
def test_outline_is_drawn_and_named(explanation: Explanation, contour: Any) -> None:
    plain = Selection(block=1, head=0, token=3, opacity=0.0)
    outlined = replace(plain, contour=contour, mass=0.3)
    before, after = (embedded(figure(explanation, selection, kind="svg"))[1] for selection in (plain, outlined))
    changed = (before != after).any(-1)
    assert 0 < changed.mean() < 0.2
    expected = {"mass": "with 30% of the weight", "otsu": "Otsu"}[contour]
    assert expected in text_of(figure(explanation, outlined, kind="svg")).replace("  ", " ")


def test_text_stays_text_in_svg_and_pdf(explanation: Explanation, checkpoint: Checkpoint) -> None:
    selection = Selection(block=0, head=1, token=6)
    view = MapView.of(explanation.record, selection, explanation.payload)
    facts = caption(explanation, checkpoint, view.sentence, "photo.png")
    output = text_of(map_figure(explanation, selection, view, facts, kind="svg"))
    for fact in (
        "Block 1, head 2",
        "patch (row 2, col 2)",
        "tiny",
        checkpoint.hash,
        checkpoint.identity,
        "32 × 32 px",
        "photo.png",
    ):
        assert fact in output.replace("  ", " ")
    assert "10%" in output and "2×" in output and "Attention weight" in output
    pdf = map_figure(explanation, selection, view, facts, kind="pdf")
    assert pdf.startswith(b"%PDF") and b"/ToUnicode" in pdf
    drawn = b"".join(
        zlib.decompress(part) for part in re.findall(rb"stream\r?\n(x.+?)\r?\nendstream", pdf, re.DOTALL)[:1]
    )
    assert b" Tf" in drawn and (b"TJ" in drawn or b" Tj" in drawn)


def test_cosines_and_shares_have_their_own_unit(explanation: Explanation) -> None:
    output = text_of(figure(explanation, Selection(view="similar", token=3), kind="svg"))
    assert "Cosine" in output and "%" not in output and "×" not in output
    view = MapView(torch.arange(17) / 136, {"method": "other"}, "Another.", 0.0, 0.2, "share")
    output = text_of(map_figure(explanation, Selection(), view, "Facts.", kind="svg"))
    assert "Share" in output and "20%" in output and "×" not in output


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_foreign_text_is_escaped(explanation: Explanation, checkpoint: Checkpoint, kind: Any) -> None:
    facts = caption(explanation, checkpoint, "Sentence.", HOSTILE)
    content = figure(explanation, Selection(), facts, kind=kind)
    if kind == "svg":
        tags = {element.tag for element in ElementTree.fromstring(content).iter()}
        assert f"{SVG}script" not in tags and f"{SVG}b" not in tags
        assert "alert(1)" in text_of(content) and "frac{$" in text_of(content)


def test_long_word_is_broken_to_fit(explanation: Explanation) -> None:
    content = figure(explanation, Selection(cover="film"), "x" * 300, kind="svg")
    lines = [line for line in re.findall(r">(x+)<", content.decode())]
    assert "".join(lines) == "x" * 300 and len(lines) >= 4


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_same_view_is_the_same_file(explanation: Explanation, kind: Any) -> None:
    assert figure(explanation, Selection(), kind=kind) == figure(explanation, Selection(), kind=kind)


@pytest.mark.parametrize("resize", ["shortest", "squash"])
@pytest.mark.parametrize("size", [(3000, 60), (60, 3000), (1, 1)])
def test_figure_of_a_thin_or_tiny_picture_fits_a_page(
    checkpoint: Checkpoint, size: tuple[int, int], resize: Any
) -> None:
    checkpoint = replace(checkpoint, preprocess=Preprocess((32, 32), resize=resize))
    drawn = Image.open(io.BytesIO(figure(explained(checkpoint, *size), Selection(token=4))))
    assert drawn.height / DPI * 25.4 < 240


def test_grid_has_a_map_for_every_head_and_their_numbers(explanation: Explanation, checkpoint: Checkpoint) -> None:
    selection = Selection(token=6, colormap="gray", direction="to")
    facts = caption(explanation, checkpoint, grid_sentence(explanation, selection))
    content = grid_figure(explanation, selection, facts, kind="svg")
    assert {"Head", "Block", "1", "2"} <= set(text_of(content).split())
    assert "attention to patch (row 2, col 2)" in text_of(content)
    drawn = embedded(content)[0][..., 0].astype(int)
    record = explanation.record
    top = shared_top(explanation.payload, selection)
    side = drawn.shape[0] / 2
    for block in range(2):
        for head in range(2):
            truth = record.heatmap(record.weights(6, block, head, "to")).numpy()
            centres = [((np.arange(4) + 0.5) * side / 4 + i * side).astype(int) for i in (block, head)]
            levels = np.clip(truth / top, 0, 1) * 255
            assert np.abs(drawn[centres[0]][:, centres[1]] - levels).max() <= 2


def test_grid_without_a_shared_scale_says_so(explanation: Explanation) -> None:
    output = text_of(grid_figure(explanation, Selection(scale="own"), "Facts.", kind="svg"))
    assert "cannot be compared" in output and "×" not in output


def test_grid_of_many_blocks_fits_a_page(explanation: Explanation) -> None:
    tall = Image.open(io.BytesIO(grid_figure(explanation, Selection(), "Facts.")))
    assert tall.height / DPI * 25.4 < 240


@pytest.mark.parametrize(("width", "height"), [(100, 50), (1800, 900), (40, 60)])
def test_picture_to_share_is_the_models_input_at_1200_pixels_with_sharp_patches(
    checkpoint: Checkpoint, width: int, height: int
) -> None:
    explanation = explained(checkpoint, width, height)
    selection = Selection(block=0, head=1, token=6, opacity=1.0, cover="film", colormap="gray")
    view = MapView.of(explanation.record, selection, explanation.payload)
    drawn = embedded(shared_picture(explanation, selection, checkpoint, view, kind="svg"))[0]
    assert drawn.shape == (1200, 1200, 3)  # the square in the middle
    patches = drawn.reshape(4, 300, 4, 300, 3)
    sharp = patches == patches[:, 150:151, :, 150:151]
    assert sharp.mean() > 0.98  # an edge may be a pixel off
    levels = np.clip(explanation.record.heatmap(view.weights).numpy() / view.top, 0, 1) * 255
    assert np.abs(patches[:, 150, :, 150, 0] - levels).max() <= 1
    picture = Image.open(io.BytesIO(shared_picture(explanation, selection, checkpoint, view)))
    assert 1200 <= picture.width < 1250 and 1300 < picture.height < 1450


def test_picture_to_share_says_what_it_shows(explanation: Explanation, checkpoint: Checkpoint) -> None:
    pixels = checkpoint.preprocess(explanation.picture)

    def caption_of(target: int, **facts: float) -> str:
        recorded = RecordedPass.of_class(checkpoint.model, pixels, target)
        view = MapView.of_method(recorded, "relevance", checkpoint.labels[target])
        measured = replace(checkpoint, facts=facts)
        svg = shared_picture(explanation, Selection(), measured, view, f"By {HOSTILE}", kind="svg")
        return re.sub(" +", " ", text_of(svg))

    (first, share), (second, _) = explanation.predictions[:2]
    for target in (0, 3):
        said = caption_of(target)
        assert f"It says {first} ({share:.0%})" in said
        assert f"Relevance: evidence for “{checkpoint.labels[target]}”." in said
        assert "tiny, input 32 × 32 px, By" in said and "alert(1)" in said
    unsure = caption_of(0, sure_from=99.0)
    assert "It says" not in unsure and f"Not sure: perhaps {first}, {second}" in unsure
