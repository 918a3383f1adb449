"""Stale uploaders: until the browser has processed the end of the run that took the files, every message names the
uploader that the page has replaced or removed.
"""

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tests.pages.controls import address, app_page, control, press, run
from tests.pages.pictures import png
from tests.pages.test_explore import gif
from vit.images import samples


def hold(page: AppTest, uploader: Any) -> None:
    """Let the next message name the files of an uploader that is not drawn any more."""
    uploader.proto.form_id = ""  # a browser sends the files of a submitted form
    page._tree.main.children[10_000] = uploader


def test_frame_selected_right_after_the_upload_is_kept(page: AppTest) -> None:
    page.run()
    uploader = page.file_uploader[0].upload("wheel.gif", gif(4))
    page.run()
    page.slider[0].set_value(3)
    hold(page, uploader)
    run(page)
    assert address(page)["frame"] == "3" and page.slider[0].value == 3


def test_picture_selected_right_after_the_upload_is_kept(page: AppTest) -> None:
    page.run()
    uploader = page.file_uploader[0].set_value([(f"{n}.png", png(n, 50), "image/png") for n in (60, 70)])
    page.run()
    page.button(key="own pictures next").click()
    hold(page, uploader)
    run(page)
    assert address(page)["upload"] == "70.png"


def test_second_file_in_the_same_uploader_is_taken_alone(page: AppTest) -> None:
    page.run()
    uploader = page.file_uploader[0].upload("60.png", png(60, 50))
    page.run()
    uploader.upload("70.png", png(70, 50))  # into the same uploader, which the browser still shows
    hold(page, uploader)
    run(page)
    assert address(page)["upload"] == "70.png"


def test_files_deleted_on_the_server_change_nothing(page: AppTest) -> None:
    page.run()
    uploader = page.file_uploader[0].upload("60.png", png(60, 50))
    page.run()
    page.file_uploader[0].upload("70.png", png(70, 50)).run()
    states = page._tree.get_widget_states()
    states.widgets.append(uploader._widget_state)  # of a file without references
    page._run(states)
    assert not page.exception and address(page)["upload"] == "70.png"


def test_frame_of_the_previous_animation_does_not_apply_to_the_new_one(page: AppTest) -> None:
    page.run()
    page.file_uploader[0].upload("wheel.gif", gif(4)).run()
    page.slider[0].set_value(3)
    page.file_uploader[0].upload("other.gif", gif(3))
    run(page)
    assert address(page)["upload"] == "other.gif" and "frame" not in address(page)


def test_dismissed_camera_photo_undoes_no_choice(page: AppTest) -> None:
    page.run()
    page.file_uploader[0].set_value([(f"{n}.png", png(n, 50), "image/png") for n in (60, 70)])
    page.run()
    switch = next(one for one in page.toggle if one.label == "Use the camera")
    switch.set_value(True).run()
    photo = samples.read("horse")
    camera = page.camera_input[0].set_value(("camera.jpg", photo, "image/jpeg"))
    page.run()
    next(one for one in page.toggle if one.label == "Use the camera").set_value(False).run()
    page.button(key="own pictures next").click()
    hold(page, camera)
    run(page)
    assert address(page)["upload"] == "60.png" and page.session_state["Explore"].source == "upload"


def test_browsers_back_on_compare_is_not_undone(checkpoints: Path) -> None:
    page = app_page("compare", a_sample="upload")
    uploader = page.file_uploader(key="a_upload").upload("photo.png", png(300, 200))
    page.run()
    assert "a_picture" in address(page)
    del page.query_params["a_sample"], page.query_params["a_picture"]  # the browser's Back
    page.run()
    assert not page.file_uploader
    hold(page, uploader)
    run(page)
    assert "a_picture" not in address(page)


def test_form_of_an_added_group_never_reappears(
    page: AppTest, checkpoints: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VIT_PICTURES", str(tmp_path / "pictures"))
    run(page, classes_from="examples")
    page.text_input(key="classes_group name 0").set_value("cats")
    uploader = page.file_uploader(key="classes_group pictures 0").set_value([("a.png", png(30, 30), "image/png")])
    press(page, "Add the group")
    (remove,) = [one for one in page.button if one.label == "Remove"]
    remove.click()
    hold(page, uploader)
    run(page)
    assert "classes_group" not in address(page)
    (shown,) = [one for one in page.file_uploader if (one.key or "").startswith("classes_group")]
    assert not shown.value


def test_data_selected_right_after_an_archive_was_taken_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("VIT_DATA_ROOTS", str(tmp_path / "data"))
    page = app_page("train")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in ("teal", "olive"):
            for number in range(4):
                archive.writestr(f"{name}/{number}.png", png(30 + number, 30, color=name))
    uploader = page.file_uploader(key="archive_0").upload("colours.zip", content.getvalue())
    page.run()
    assert control(page.selectbox, "data").value.startswith("folder:")
    control(page.selectbox, "data").set_value("shapes")
    hold(page, uploader)
    run(page)
    assert control(page.selectbox, "data").value == "shapes"


def test_added_checkpoint_is_not_offered_again(checkpoints: Path, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = app_page("checkpoints")
    weights = (checkpoints / "cifar10" / "model.safetensors").read_bytes()
    uploader = page.file_uploader[0].set_value([("mine.safetensors", weights, "application/octet-stream")])
    page.run()
    press(page, "Add")
    hold(page, uploader)
    assert not run(page).error
    assert not [one for one in page.button if one.label == "Add"] and (checkpoints / "mine").is_dir()
