"""What people do with the app, the lesson and the viewer's file, in WebKit; the details are tested in Chromium."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.browser.journeys import *  # noqa: F403
from tests.browser.serving import ROOT
from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.load import load_checkpoint
from vit.explain.record import record
from vit.images.files.decode import decode_image
from vit.lesson.page import lesson
from vit.view.overlay import COLORMAPS
from vit.view.payload import pack
from vit.view.selection import Selection
from vit.view.standalone_page import standalone

from .window import Window, webkit


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A photo that a phone took upright: its orientation is in a tag."""
    path, tags = tmp_path / "phone.jpg", Image.Exif()
    tags[0x0112] = 6
    noise = np.random.default_rng(5).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((900, 600)).save(path, exif=tags, quality=95)
    return path


def open_file(window: Window, path: Path, content: bytes) -> None:
    """Open a page from the disk, and wait until its viewer is drawn."""
    path.write_bytes(content)
    window.navigate(path.as_uri())
    window.until("a?.settled && a.page.find('.picture').naturalWidth > 0")


@pytest.mark.parametrize("old", [False, True])
def test_a_finger_pins_and_unpins_patches_and_the_class_token(window: Window, old: bool) -> None:
    window.open("?sample=cat")
    for selector, token in (("canvas.over", 1 + 8 * 16 + 8), (".tokens button", 0)):
        for pinned in (True, False):
            window.tap(selector, old=old)
            assert window.ask("a.selection.pinned") is pinned
            assert not pinned or window.ask("a.selection.token") == token
    window.until("a.settled")


def test_an_uploaded_picture_is_explained_and_a_reload_shows_it_again(window: Window, photo: Path) -> None:
    window.open("?sample=cat")
    window.upload('[data-testid="stFileUploader"] input[type="file"]', photo)
    window.until("a?.payload?.header.picture.height === 900")
    window.until_link("upload=phone.jpg.*picture=")
    window.open(window.address.removeprefix(f"{window.url}/"))
    assert window.ask("[a.payload.header.picture.width, a.payload.header.picture.height]") == [600, 900]


def test_the_lesson_explains_its_samples_and_a_photo_from_the_disk(window: Window, photo: Path, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(ROOT / "checkpoints" / "cifar10")
    open_file(window, tmp_path / "lesson.html", lesson(checkpoint))
    assert answer(window).startswith("cat")
    sample = window.ask("a.payloadId")
    window.upload(".own input", photo)
    window.until("a.payloadId !== arguments[0] && a.settled", sample)
    assert window.ask("[a.payload.header.picture.width, a.payload.header.picture.height]") == [600, 900]
    assert window.ask("document.querySelector('.problem').hidden")
    assert window.ask("document.querySelector('.facts').textContent").endswith("Here it computes with WebAssembly.")
    assert answer(window) == expected_answer(checkpoint, photo)
    window.ask("document.querySelectorAll('.steps button')[1].click()")
    before = window.drawn()
    window.point(2, 5)
    window.until("a.settled && a.page.find('canvas.over').toDataURL() !== arguments[0]", before)


def answer(window: Window) -> str:
    """The lesson's first class, and its probability."""
    return window.ask("document.querySelector('.answer li').innerText.split(/\\s+/).join(' ').trim()")


def expected_answer(checkpoint: Checkpoint, photo: Path) -> str:
    with torch.inference_mode():
        output = checkpoint.model(checkpoint.preprocess(decode_image(photo.read_bytes())))
    probabilities = checkpoint.model.probabilities(output.logits)[0]
    best = int(probabilities.argmax())
    return f"{checkpoint.labels[best]} {probabilities[best]:.0%}"


def test_the_viewers_file_works_from_the_disk(window: Window, checkpoint: Checkpoint, tmp_path: Path) -> None:
    picture = Image.linear_gradient("L").resize((64, 64)).convert("RGB")
    payload = pack(record(checkpoint.model, checkpoint.preprocess(picture)), picture, (0, 0, 64, 64), COLORMAPS)
    open_file(window, tmp_path / "viewer.html", standalone(payload, Selection(), "A picture"))
    assert window.ask("document.querySelector('#too-old')") is None
    before = window.drawn()
    token = window.point(1, 2, click=True)
    window.until("a.settled && a.selection.pinned && a.selection.token === arguments[0]", token)
    assert window.drawn() != before


def test_pages_are_dark_where_the_system_is(window: Window, checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "lesson.html").write_bytes(lesson(checkpoint))
    lightness = "getComputedStyle(document.querySelector('{}')).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    app, file = lightness.format("[data-testid=stApp]"), lightness.format("body")

    def grounds(window: Window) -> list[float]:
        window.open("?sample=cat")
        result = [np.mean(window.ask(app))]
        window.navigate((tmp_path / "lesson.html").as_uri())
        return [*result, np.mean(window.ask(file))]

    assert min(grounds(window)) > 200
    with webkit(window.url, tmp_path, dark=True) as dark:
        assert max(grounds(dark)) < 60
