"""Panel Features: colours of this and other pictures in one basis, and downloads."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import streamlit as st
import torch
from PIL import Image
from streamlit.testing.v1 import AppTest

import vit
from pages.server import uploaded_pictures
from pages.server.uploaded_pictures import Upload
from tests.pages.controls import control, run, texts
from tests.pages.offered import payload, sent_to
from tests.pages.pictures import png
from vit.explain.components import components, patch_features
from vit.explain.occlusion import hide_patches
from vit.exports import features_sheet
from vit.images import samples


def shown(page: AppTest, **link: str) -> AppTest:
    assert not run(page, **{"panel": "features", "sample": "cat"} | link).error
    return page


def pictures_at(block: int, names: list[str]) -> list[features_sheet.Picture]:
    """Return the pictures that the panel reads."""
    checkpoint = vit.load_checkpoint("cifar10")
    size = checkpoint.preprocess.size
    return [features_sheet.read(checkpoint, name, vit.decode_image(samples.read(name)), size, block) for name in names]


@pytest.mark.exhaustive
def test_shares_are_those_of_all_samples_at_the_links_block(page: AppTest) -> None:
    names = ["cat", *(name for name in samples.SAMPLES if name != "cat")]
    for block in (5, 1):
        of = components([one.features for one in pictures_at(block, names)])
        red, green, blue = of.shares.tolist()
        said = f"Red is {red:.0%} of how these patches differ, green {green:.0%}, blue {blue:.0%}."
        assert said in texts(shown(page, size="32", features_block=str(block)), "caption")
    assert control(page.selectbox, "features_block").options == [f"block {i + 1}" for i in range(6)]


def test_uploaded_pictures_make_the_basis_and_bad_ones_are_left_out(
    page: AppTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIT_PICTURES", str(tmp_path / "pictures"))
    uploads = [Upload.of("red <b>.png", png(30, 30, color="rgb(200, 20, 20)")), Upload.of("none.png", b"no picture")]
    key = uploaded_pictures.store_all([*uploads, Upload.of("horse.jpg", samples.read("horse"))])
    shown(page, size="32", features_with="your own pictures", features_pictures=key)
    assert any("none.png: " in one.value for one in page.code)
    assert len([one for one in page.get("image") if "Features of" in str(one.proto)]) == 2


def test_all_blocks_are_drawn_on_request(page: AppTest) -> None:
    assert "basis of its own" not in texts(shown(page, size="32"), "caption")
    assert "basis of its own" in texts(shown(page, size="32", features_blocks="1", foreground="1"), "caption")


@pytest.mark.parametrize("link", [{"features_block": "99"}, {"features_with": "<b>"}, {"features_pictures": "x"}])
def test_invalid_links_show_the_default(page: AppTest, link: dict[str, str]) -> None:
    shown(page, **link)
    assert control(page.selectbox, "features_block").value == 5


def test_downloads_contain_what_is_drawn() -> None:
    checkpoint = vit.load_checkpoint("cifar10")
    pictures = pictures_at(5, ["cat", "horse"])
    of = components([one.features for one in pictures], foreground=True)
    with np.load(io.BytesIO(features_sheet.npz(pictures, of, checkpoint, 5, True))) as arrays:
        meta = json.loads(str(arrays["meta"]))
        assert meta["pictures"] == ["cat", "horse"] and meta["block"] == 5 and meta["foreground"] is True
        assert meta["checkpoint"]["identity"] == checkpoint.identity
        np.testing.assert_array_equal(arrays["colours_1"], of.colours[1].numpy())
        assert (arrays["colours_0"][~arrays["used_0"]] == 0).all()
    sheet = features_sheet.sheet(pictures, of)
    side, gap = features_sheet.TILE, features_sheet.GAP
    assert sheet.size == (2 * side + gap, 2 * side + gap)
    square = side // 8
    drawn = np.asarray(sheet)[side + gap + square // 2 :: square, side + gap + square // 2 :: square][:8, :8]
    np.testing.assert_array_equal(drawn, (of.colours[1] * 255).round().byte().numpy())


def test_animation_has_a_frame_for_each_block() -> None:
    film = features_sheet.over_blocks([pictures_at(block, ["cat", "horse"]) for block in (0, 5)], False)
    first, last = film.pictures
    assert first.size == last.size and first.width % 2 == first.height % 2 == 0
    assert len(set(film.durations)) == 1 and isinstance(first, Image.Image)
    assert not torch.equal(torch.tensor(np.array(first)), torch.tensor(np.array(last)))


def test_viewer_colours_the_original_and_changed_picture_in_one_basis(page: AppTest) -> None:
    link = {"size": "32", "view": "components", "after_block": "2", "panel": "what-if", "hidden": "0-7"}
    shown(page, **link)
    checkpoint = vit.load_checkpoint("cifar10")
    pixels = checkpoint.preprocess(vit.decode_image(samples.read("cat")))
    masked = hide_patches(pixels, range(8), checkpoint.config.patch_size, "mean")
    one, other = (patch_features(checkpoint.model, each, 2) for each in (pixels, masked))
    of = components([one])
    for key, truth in (("features feeder", of.colours[0]), ("changed features", of.colours_of(other))):
        header, sections = payload(page, key)
        assert header["block"] == 2 and header["shares"] == pytest.approx(of.shares.tolist())
        assert np.abs(sections["colours"].reshape(8, 8, 3) / 255 - truth.numpy()).max() <= 1 / 255
    assert sent_to(page)["features"] and sent_to(page, "changed viewer")["features"]


def test_nearest_patches_need_more_data_only_after_other_blocks(page: AppTest, forwards: list[str]) -> None:
    st.cache_resource.clear()  # as after a restart
    shown(page, view="similar", panel="weights")
    assert sent_to(page)["features"] == ""
    before = len(forwards)
    shown(page, view="similar", panel="weights", after_block="1")
    header, sections = payload(page, "features feeder")
    assert header["block"] == 1 and "colours" not in sections and len(forwards) == before + 2
    shown(page, view="similar", panel="weights", after_block="1", opacity="0.2")
    assert len(forwards) == before + 2
