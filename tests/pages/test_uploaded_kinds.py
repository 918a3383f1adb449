"""Files of every kind reach the app, which identifies them in a sentence; Streamlit's own refusal explains nothing."""

import io

import numpy as np
import pillow_heif
import pytest
from patience import PATIENCE
from PIL import Image
from streamlit.testing.v1 import AppTest

from tests.pages.offered import payload
from vit.images.encode import encode_image

SEVEN_ZIP = b"7z\xbc\xaf\x27\x1c" + bytes(99)


def test_explore_identifies_a_file(page: AppTest) -> None:
    page.run()
    for name, content, words in (
        ("photo.dng", b"II*\0\x10\0\0\0CR\2\0" + bytes(99), "photo.dng: This is a raw photo of a camera"),
        ("pictures.7z", SEVEN_ZIP, "pictures.7z: This is a 7z archive"),
        ("last.ckpt", b"PK\3\4" + bytes(26) + b"archive/data.pkl", "Page Checkpoints opens checkpoints"),
        ("notes", b"nothing", "notes: This file is not a picture"),
    ):
        page.file_uploader[0].upload(name, content).run()
        assert not page.exception
        assert [words in error.value.replace("\\", "") for error in page.error] == [True]


def test_picture_opens_under_any_file_name(page: AppTest) -> None:
    page.run()
    heic = io.BytesIO()
    pillow_heif.from_pillow(Image.new("RGB", (300, 200), "teal")).save(heic)
    jpeg = encode_image(Image.new("RGB", (400, 200), "teal"), "JPEG")
    for name, content, width in (("IMG_1.HEIC", heic.getvalue(), 300), ("photo.jfif", jpeg, 400)):
        page.file_uploader[0].upload(name, content).run()
        assert not page.exception and not page.error
        assert payload(page)[0]["picture"]["width"] == width


def test_tiff_of_several_pages_says_that_one_is_shown(page: AppTest) -> None:
    page.run()
    scan, file = Image.new("RGB", (300, 200), "teal"), io.BytesIO()
    scan.save(file, "TIFF", save_all=True, append_images=[scan])
    page.file_uploader[0].upload("scan.tif", file.getvalue()).run()
    assert not page.exception and any("has 2 pages" in caption.value for caption in page.caption)


def test_picture_with_a_narrow_range_of_values_says_so_and_can_be_stretched(page: AppTest) -> None:
    page.run()
    cells = Image.fromarray(np.linspace(0, 4095, 90).astype(np.uint16)[None].repeat(60, 0))
    page.file_uploader[0].upload("cells.png", encode_image(cells)).run()
    assert any("uses 0 to 4,095 of 65,535" in caption.value for caption in page.caption)
    dark = payload(page)[1]["picture"].tobytes()
    next(one for one in page.toggle if "Stretch" in one.label).set_value(True).run()
    assert not page.exception and "stretch" in page.query_params
    stretched = Image.open(io.BytesIO(payload(page)[1]["picture"].tobytes())).convert("L")
    assert Image.open(io.BytesIO(dark)).convert("L").getextrema()[1] < 30 and stretched.getextrema()[1] > 240
    assert "stretch=True" in next(code.value for code in page.code if "import vit" in code.value)
    page.file_uploader[0].upload("photo.png", encode_image(Image.new("RGB", (300, 200), "teal"))).run()
    assert "stretch" not in page.query_params and not any("Stretch" in one.label for one in page.toggle)


@pytest.mark.parametrize("where", ["pages/checkpoints.py", "pages/train.py"])
def test_no_uploader_refuses_by_name(page: AppTest, where: str) -> None:
    """As far as AppTest can check: it raises where a type is not allowed."""
    page.switch_page(where).run(timeout=PATIENCE)
    assert page.file_uploader and all(not one.proto.type for one in page.file_uploader)


def test_page_checkpoints_identifies_files_without_weights(page: AppTest) -> None:
    page.switch_page("pages/checkpoints.py").run()
    page.file_uploader[0].set_value([("model.rar", b"Rar!\x1a\x07\0", "application/octet-stream")]).run()
    assert not page.exception and "model.rar is no file of weights" in page.error[0].value.replace("\\", "")
