"""PDF reports: number of pages, and the text and pictures of the view."""

import re
import zlib
from pathlib import Path

import pytest
import torch
from PIL import Image

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.load import load_checkpoint
from vit.explain.head_statistics import Statistic
from vit.explain.logit_lens import Lens, logit_lens
from vit.images.encode import encode_image
from vit.view import reports
from vit.view.contact_sheet import EvaluatedPicture, Picture, PictureResult
from vit.view.paper import CONTENT_HEIGHT, Row, document, picture_rows, text_rows


def pages_of(pdf: bytes) -> int:
    assert pdf.startswith(b"%PDF")
    [count] = re.findall(rb"/Count (\d+)", pdf)
    return int(count)


def words_of(pdf: bytes) -> str:
    """Return the ASCII text of all pages without spaces."""
    text = b""
    for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL):
        try:  # not `decompress`: if the last byte of a stream is a carriage return, the pattern above takes it
            content = zlib.decompressobj().decompress(stream)
        except zlib.error:  # a picture
            continue
        text += b"".join(re.findall(rb"\(((?:\\.|[^()\\])*)\)", content))
    return re.sub(rb"\\(.)", rb"\1", text).replace(b" ", b"").replace(b"\0", b"").decode("latin-1")


def pictures_in(pdf: bytes) -> int:
    return len(re.findall(rb"/Subtype /Image", pdf))


def test_rows_that_do_not_fit_go_to_the_next_page() -> None:
    drawn: list[tuple[int, float]] = []
    sheets: list[object] = []

    def draw(sheet: object, above: float) -> None:
        if sheet not in sheets:
            sheets.append(sheet)
        drawn.append((len(sheets), above))

    half = Row(CONTENT_HEIGHT / 2, draw)
    assert pages_of(document([half, half, half])) == 2
    assert [page for page, _ in drawn] == [1, 1, 2] and drawn[0][1] == drawn[2][1] < drawn[1][1]
    assert pages_of(document([half, half])) == 1
    assert pages_of(document([Row(CONTENT_HEIGHT + 50, draw)])) == 1  # an oversized element has a page of its own


def test_same_input_gives_the_same_bytes() -> None:
    rows = text_rows("The same words, " * 40)
    assert len(rows) > 3 and document(rows) == document(rows)
    assert "Thesamewords," in words_of(document(rows))


def test_every_head_has_its_number() -> None:
    values = torch.arange(6, dtype=torch.float64).view(2, 3) / 8
    statistics = {"one": Statistic(values, 0.25), "other": Statistic(values + 1, 0.5, values / 4, 12)}
    titles = {"one": "Of one picture", "other": "Of twelve"}
    amounts = dict.fromkeys(titles, "{:.3f}".format)
    pdf = reports.heads_report(statistics, titles, amounts, "Facts.")
    words = words_of(pdf)
    for number in [*values.flatten().tolist(), *(values + 1).flatten().tolist()]:
        assert f"{number:.3f}" in words
    assert all(word in words for word in ("Ofonepicture", "Meanover12pictures", "uniform:0.500", "Facts."))
    many = {name: Statistic(torch.rand(24, 16, dtype=torch.float64), 0.1) for name in "abcdefgh"}
    assert pages_of(reports.heads_report(many, {name: name for name in many}, dict.fromkeys(many, str), "")) == 2


def test_layers_have_curves_and_a_map_for_each_block(saved: Path) -> None:
    checkpoint: Checkpoint = load_checkpoint(saved)
    reading: Lens = logit_lens(checkpoint.model, torch.randn(1, 3, 32, 32), 2)
    blocks = len(reading.answers)
    maps = torch.rand(blocks, 4, 4)
    pdf = reports.layers_report(reading, checkpoint.labels, 2, maps, reports.describe(checkpoint))
    words = words_of(pdf)
    assert pictures_in(pdf) == blocks and f"Block{blocks}:to{maps[-1].max():.0%}" in words
    assert f"Decidedatblock{reading.decided + 1}" in words and checkpoint.hash in words


def look(name: str) -> EvaluatedPicture:
    thumbnail = encode_image(Image.new("RGB", (192, 192), (200, 30, 30)), "JPEG")
    return EvaluatedPicture(Picture(name, b""), PictureResult("cat", 0.5, 0.25, thumbnail), None)


@pytest.mark.parametrize(("count", "pages"), [(1, 1), (30, 2), pytest.param(130, 6, marks=pytest.mark.exhaustive)])
def test_sheet_of_many_pictures(count: int, pages: int) -> None:
    captions = [f"cat 50%\nnumber {number}\nspread 0.25" for number in range(count)]
    pdf = reports.sheet_report([look(str(number)) for number in range(count)], captions, "Facts.")
    words = words_of(pdf)
    assert pages_of(pdf) == pages and f"number{count - 1}" in words and "Facts." in words
    assert (f"{pages}/{pages}" in words) == (pages > 1)


def test_tower_fits_the_page() -> None:
    [row] = picture_rows([(Image.new("RGB", (10, 400)), "tall"), (Image.new("RGB", (400, 10)), "wide")], 2)
    assert row.height < CONTENT_HEIGHT / 1.5


def test_two_maps_and_their_difference() -> None:
    tiles = [(Image.new("RGB", (60, 40), colour), f"{colour} map") for colour in ("red", "green", "blue")]
    pdf = reports.comparison_report(tiles, ["Rank correlation 0.50."], "Facts.")
    words = words_of(pdf)
    assert pages_of(pdf) == 1 and pictures_in(pdf) == 3
    assert all(word in words for word in ("redmap", "greenmap", "bluemap", "Rankcorrelation0.50.", "Facts."))
