"""Page Explore without a browser: empty, normal and error state."""

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file
from streamlit.testing.v1 import AppTest

import vit
from pages.looking.panels import own_pictures
from pages.server import uploaded_pictures
from tests.pages.controls import address, app_page, control, run, texts
from tests.pages.offered import payload, sent_to
from tests.pages.pictures import png
from vit.explain import faithfulness_correlation
from vit.explain.components import components, patch_features
from vit.images import samples
from vit.images.encode import encode_image
from vit.images.preprocess import Preprocess
from vit.model.transformer import VisionTransformer

ROOT = Path(__file__).parents[2]


def test_page_opens_with_an_explained_sample(page: AppTest) -> None:
    assert not run(page).error
    header, _ = payload(page)
    assert header["grid"] == [8, 8] and header["prefix"] == ["cls"]
    width, height = Image.open(samples.SAMPLES["cat"].path).size
    assert (header["picture"]["width"], header["picture"]["height"]) == (width, height)


def test_displayed_attention_equals_the_models(page: AppTest, checkpoints: Path) -> None:
    page.run()
    checkpoint = vit.load_checkpoint(checkpoints / "cifar10")
    pixels = checkpoint.preprocess(vit.decode_image(samples.read("cat")))
    attention = checkpoint.model(pixels, output_attentions=True).attentions[2][0].detach().numpy()  # (H, N, N)
    _, sections = payload(page)
    shown = sections["maps"][2] / 255 * sections["scales"][2][..., None]  # (H, N, P)
    assert abs(shown - attention[..., 1:]).max() < 2 / 510 * attention.max()


def test_upload_replaces_the_sample(page: AppTest) -> None:
    page.run()
    page.file_uploader[0].upload("photo.png", png(300, 200)).run()
    assert not page.exception and not page.error
    header, _ = payload(page)
    assert (header["picture"]["width"], header["picture"]["height"]) == (300, 200)


def gif(count: int) -> bytes:
    frames = [Image.new("RGB", (300, 200), (60 * i, 120, 200)) for i in range(count)]
    return encode_image(frames[0], "GIF", save_all=True, append_images=frames[1:])


def test_frame_of_an_animation_can_be_selected(page: AppTest) -> None:
    page.run()
    assert not page.slider
    page.file_uploader[0].upload("wheel.gif", gif(4)).run()
    assert not page.exception and (page.slider[0].min, page.slider[0].max, page.slider[0].value) == (1, 4, 1)
    _, first = payload(page)
    page.slider[0].set_value(3).run()
    assert not page.exception
    _, third = payload(page)
    shown = Image.open(io.BytesIO(third["picture"].tobytes())).convert("RGB").getpixel((150, 100))
    assert abs(shown[0] - 120) < 4 and first["picture"].tobytes() != third["picture"].tobytes()
    assert "frame=2" in next(code.value for code in page.code if "import vit" in code.value)
    assert page.query_params["frame"] in ("3", ["3"])
    assert not app_page(frame="99").slider


def test_reload_restores_the_uploaded_picture(page: AppTest) -> None:
    page.run()
    page.file_uploader[0].upload("photo.png", png(300, 200)).run()
    again = app_page(**page.query_params)
    assert not again.error and payload(again)[0]["picture"]["width"] == 300
    assert any(caption.value == "photo\\.png" for caption in again.caption)
    again.file_uploader[0].upload("other.png", png(400, 200)).run()
    for one in (again, app_page(**again.query_params)):
        assert payload(one)[0]["picture"]["width"] == 400
    again.query_params.update(page.query_params)  # the browser's Back
    assert payload(again.run())[0]["picture"]["width"] == 300


def test_deleted_or_invalid_picture_is_dropped_from_the_link(page: AppTest, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VIT_PICTURES", str(tmp_path / "pictures"))
    page.run()
    page.file_uploader[0].upload("photo.png", b"no picture").run()
    assert "picture" not in page.query_params and not (tmp_path / "pictures").exists()
    page.file_uploader[0].upload("photo.png", png(300, 200)).run()
    (key,) = os.listdir(tmp_path / "pictures")
    (tmp_path / "pictures" / key).unlink()
    again = app_page(**page.query_params)
    assert "photo\\.png, was deleted" in again.info[0].value


def several(page: AppTest, **pictures: bytes) -> None:
    page.file_uploader[0].set_value([(f"{name}.png", data, "image/png") for name, data in pictures.items()]).run()
    assert not page.exception


def strip(page: AppTest) -> dict[str, Any]:
    return json.loads(page.get_by_key("own pictures").proto.json)


def in_the_strip(page: AppTest) -> list[str]:
    return [one["credit"] for one in strip(page)["samples"]]


def test_several_files_become_a_strip_to_step_through(page: AppTest) -> None:
    page.run()
    several(page, first=png(300, 200), bad=b"no picture", second=png(400, 200))
    assert len(page.error) == 1 and page.error[0].value.startswith("bad")
    assert in_the_strip(page) == ["first.png", "second.png"] and payload(page)[0]["picture"]["width"] == 300
    assert page.button(key="own pictures previous").disabled
    page.button(key="own pictures next").click().run()
    assert (
        payload(page)[0]["picture"]["width"] == 400 and page.button(key="own pictures next").disabled and not page.error
    )
    assert strip(page)["chosen"] == strip(page)["samples"][1]["name"]
    several(page, third=png(500, 200))  # appended to the strip
    assert in_the_strip(page) == ["first.png", "second.png", "third.png"]
    assert payload(page)[0]["picture"]["width"] == 500
    again = app_page(**page.query_params)
    assert in_the_strip(again) == in_the_strip(page) and payload(again)[0]["picture"]["width"] == 500


def test_one_upload_is_no_strip_and_the_next_joins_it(page: AppTest) -> None:
    page.run()
    page.file_uploader[0].upload("photo.png", png(300, 200)).run()
    assert "pictures" not in page.query_params and "own pictures" not in page.session_state
    page.file_uploader[0].upload("other.png", png(400, 200)).run()
    assert in_the_strip(page) == ["photo.png", "other.png"]
    page.file_uploader[0].upload("photo.png", png(300, 200)).run()  # the same file again
    assert in_the_strip(page) == ["photo.png", "other.png"] and payload(page)[0]["picture"]["width"] == 300


def test_upload_is_resized_once_and_no_other_picture_again(page: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    resized: list[tuple[tuple[int, int], tuple[int, int]]] = []
    resize = Image.Image.resize

    def counted(picture: Image.Image, size: tuple[int, int], *args: Any, **options: Any) -> Image.Image:
        resized.append((picture.size, size))
        return resize(picture, size, *args, **options)

    page.run()
    several(page, first=png(333, 210), second=png(444, 220))
    monkeypatch.setattr(Image.Image, "resize", counted)
    several(page, third=png(555, 230))
    assert in_the_strip(page) == ["first.png", "second.png", "third.png"] and sent_to(page)["method"]
    assert resized.count(((555, 230), (77, 32))) == 1  # the input is cropped from this
    assert [before for before, _ in resized if before[0] == before[1] > 200] == [(230, 230)]  # thumbnails


def test_components_of_a_strip_share_one_basis(page: AppTest, checkpoints: Path) -> None:
    run(page, size="32", view="components", after_block="1")
    assert payload(page, "features feeder")[0]["pictures"] == 1
    several(page, cat=samples.read("cat"), wheel=gif(4), horse=samples.read("horse"))
    checkpoint = vit.load_checkpoint(checkpoints / "cifar10")
    pictures = [vit.decode_image(data) for data in (samples.read("cat"), gif(4), samples.read("horse"))]
    features = [patch_features(checkpoint.model, checkpoint.preprocess(one), 1) for one in pictures]
    of = components([features[i] for i in (0, 1, 2)])
    for number in (0, 1, 2):
        header, sections = payload(page, "features feeder")
        assert header["pictures"] == 3 and header["shares"] == pytest.approx(of.shares.tolist())
        truth = of.colours[number].numpy()
        assert np.abs(sections["colours"].reshape(8, 8, 3) / 255 - truth).max() <= 1 / 255
        if number < 2:
            page.button(key="own pictures next").click().run()


def test_deleted_picture_of_the_strip_is_reported(
    page: AppTest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VIT_PICTURES", str(tmp_path / "pictures"))
    page.run()
    several(page, first=png(300, 200), second=png(400, 200))
    (tmp_path / "pictures" / strip(page)["samples"][1]["name"]).unlink()
    page.button(key="own pictures next").click().run()
    assert not page.exception and payload(page)[0]["picture"]["width"] == 300
    assert "second" in page.error[0].value and "was deleted" in page.error[0].value
    run(page, view="components")
    assert payload(page, "features feeder")[0]["pictures"] == 1


def test_oldest_pictures_beyond_the_limit_are_dropped(page: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploaded_pictures, "MOST_TOGETHER", 2)
    monkeypatch.setattr(own_pictures, "MOST_TOGETHER", 2)
    page.run()
    several(page, **{f"p{width}": png(width, 50) for width in (60, 70, 80)})
    assert in_the_strip(page) == ["p70.png", "p80.png"]
    assert payload(page)[0]["picture"]["width"] == 70  # the first remaining one
    assert "the last 2 of 3 pictures" in page.error[0].value


def test_first_picture_is_shown_with_a_notice_if_nothing_can_be_stored(
    page: AppTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.run()
    monkeypatch.setattr("pages.server.uploaded_pictures.store", lambda content: "")
    several(page, first=png(300, 200), second=png(400, 200))
    assert payload(page)[0]["picture"]["width"] == 300 and "keeps no pictures now" in page.error[0].value


def test_code_of_the_view_names_sample_or_file(page: AppTest) -> None:
    run(page, block="2")
    program = next(code.value for code in page.code if "import vit" in code.value)
    assert 'samples.read("cat")' in program and "block=2" in program
    page.file_uploader[0].upload("photo.png", png(300, 200)).run()
    program = next(code.value for code in page.code if "import vit" in code.value)
    assert 'Path("photo.png").read_bytes()' in program


@pytest.mark.parametrize("content", [png(300, 200)[:80], b"no picture", b""])
def test_broken_upload_is_one_sentence_and_changes_nothing(page: AppTest, content: bytes) -> None:
    run(page, sample="temple")

    before = address(page)
    page.file_uploader[0].upload("broken.png", content).run()
    assert not page.exception and address(page) == before
    assert len(page.error) == 1 and page.error[0].value.startswith("broken") and "\n" not in page.error[0].value
    assert payload(page)[0]["picture"]["width"] == Image.open(samples.SAMPLES["temple"].path).width
    page.file_uploader[0].upload("photo.png", png(300, 200)).run()
    assert not page.error
    before = address(page)
    page.file_uploader[0].upload("broken.png", content).run()
    assert len(page.error) == 1 and address(page) == before and payload(page)[0]["picture"]["width"] == 300


def test_page_states_the_limits_of_a_small_model(page: AppTest) -> None:
    page.run()
    said = " ".join(caption.value for caption in page.caption)
    assert "airplane, automobile" in said and "for everything else it names the most similar one" in said


def test_pin_keeps_its_place_on_the_picture_at_another_size(page: AppTest) -> None:
    run(page, token=str(1 + 3 * 8 + 4), pinned="1", panel="what-if", hidden="3")
    page.selectbox(key="size").set_value((64, 64)).run()
    assert not page.exception
    seed = sent_to(page)["seed"]
    assert (seed["token"], seed["pinned"], seed["hidden"]) == (1 + 7 * 16 + 9, True, [])
    del page.query_params["size"]  # another link, as from the browser's Back
    run(page, token="5", hidden="3")
    seed = sent_to(page)["seed"]
    assert (seed["token"], seed["hidden"]) == (5, [3])


def test_larger_input_gives_more_patches(page: AppTest) -> None:
    page.run()
    page.selectbox(key="size").set_value((64, 64)).run()
    assert not page.exception
    assert payload(page)[0]["grid"] == [16, 16]


def test_link_selects_sample_and_input_size(page: AppTest) -> None:
    run(page, sample="temple", size="64")
    width, height = Image.open(samples.SAMPLES["temple"].path).size
    header, _ = payload(page)
    assert (header["picture"]["width"], header["picture"]["height"]) == (width, height)
    assert header["grid"] == [16, 16]


def test_links_to_missing_things_are_reported(page: AppTest) -> None:
    run(page, checkpoint="nobody", size="99999")
    assert any("no checkpoint nobody" in info.value for info in page.info)
    assert any("99999 px is not offered; 32, " in caption.value for caption in page.caption)


def test_impossible_number_of_heads_is_reported_and_asked_for_again(page: AppTest, headless: str) -> None:
    run(page, checkpoint=headless, heads="5")
    assert "5" in page.error[0].value
    page.selectbox(key="heads").set_value(4).run()
    assert not page.exception and not page.error
    assert payload(page)[0]["heads"] == 4
    assert any("You chose 4" in warning.value for warning in page.warning)


def test_selected_number_of_heads_is_remembered(page: AppTest, headless: str) -> None:
    run(page, checkpoint=headless)
    page.selectbox(key="heads").set_value(4).run()
    page.selectbox(key="checkpoint").set_value("cifar10").run()
    page.selectbox(key="checkpoint").set_value(headless).run()
    assert not page.exception
    assert payload(page)[0]["heads"] == 4


def test_missing_tensor_is_reported_even_if_heads_are_asked_for(
    page: AppTest, headless: str, checkpoints: Path
) -> None:
    file = checkpoints / headless / "w.safetensors"
    weights = load_file(file)
    save_file({name: tensor for name, tensor in weights.items() if "layer.1.attention.attention" not in name}, file)
    run(page, checkpoint=headless, heads="4")
    assert page.error


@pytest.mark.parametrize("name", ["../../etc/passwd", "<img src=x>", "nobody", ""])
def test_hostile_link_shows_the_defaults(page: AppTest, name: str) -> None:
    for key in (
        "sample",
        "precision",
        "panel",
        "statistic",
        "over",
        "curves",
        "ranking",
        "target",
        "method",
        "off",
        "hidden",
        "view",
        "block",
        "token",
        "colormap",
    ):
        page.query_params[key] = name
    assert not run(page).error
    assert payload(page)[0]["grid"] == [8, 8]


def test_link_names_its_class(page: AppTest) -> None:
    assert not run(page, target="dog", view="relevance").error
    assert sent_to(page)["method"]["target"] == "dog" and "has no class" not in texts(page)


@pytest.mark.parametrize("gone", ["moa", "5"])  # links once numbered the classes, and a number is another class now
def test_link_to_a_class_that_the_model_lacks_is_explained(page: AppTest, gone: str) -> None:
    assert not run(page, target=gone, view="relevance").error
    assert f"cifar10 has no class “{gone}”" in texts(page) and sent_to(page)["method"]["target"] == "cat"


def test_page_without_checkpoints_says_how_to_get_one(page: AppTest, checkpoints: Path) -> None:
    shutil.rmtree(checkpoints / "cifar10")
    run(page)
    assert "python -m vit train" in page.info[0].value


def test_damaged_checkpoint_is_named_and_the_others_stay(page: AppTest, checkpoints: Path) -> None:
    shutil.copytree(checkpoints / "cifar10", checkpoints / "torn")
    weights = checkpoints / "torn" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    run(page)
    assert page.selectbox(key="checkpoint").options == ["cifar10"]
    assert any("torn" in caption.value for caption in page.caption)


def test_best_checkpoint_of_a_run_opens_by_its_link(page: AppTest, trained: str) -> None:
    assert not run(page, checkpoint=trained).error
    assert payload(page)[0]["grid"] == [4, 4]
    assert page.selectbox(key="checkpoint").value == trained
    options = page.selectbox(key="checkpoint").options
    assert options[0] == "cifar10" and options[1] == "Run: Tiny <b> · 90.0%" and len(set(options)) == 3


def test_deleted_run_is_replaced_by_the_default(page: AppTest, checkpoints: Path, trained: str) -> None:
    run(page, checkpoint=trained)
    shutil.rmtree(checkpoints / "runs")
    assert not run(page).error
    assert payload(page)[0]["grid"] == [8, 8]


def test_damaged_checkpoint_of_a_run_is_one_sentence(page: AppTest, checkpoints: Path, trained: str) -> None:
    weights = checkpoints / "runs" / trained.removeprefix("run-") / "checkpoints" / "best" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    run(page, checkpoint=trained)
    assert any("cannot be opened" in caption.value for caption in page.caption)


def test_checkpoints_of_runs_are_offered_if_there_are_no_others(page: AppTest, checkpoints: Path, trained: str) -> None:
    shutil.rmtree(checkpoints / "cifar10")
    run(page)
    assert payload(page)[0]["grid"] == [4, 4]


@pytest.mark.parametrize("method", ["gradient-rollout", "rollout"])
def test_map_of_a_method_has_its_code_at_every_precision(
    page: AppTest, checkpoints: Path, build: Callable[..., VisionTransformer], method: str
) -> None:
    """A method's map is computed in float32 also where the pass is rounded."""
    vit.save_checkpoint(checkpoints / "mean", build(pool="mean", prefix=()), list("abcde"), Preprocess((32, 32)))
    assert not run(page, checkpoint="mean", view="relevance", method=method, precision="bfloat16").error
    program = next(code.value for code in page.code if "import vit" in code.value)
    left: dict = {}
    exec(program, left)
    sent = sent_to(page)["computed"]["values"]
    np.testing.assert_allclose(left["heatmap"].flatten(), sent, rtol=1e-5)


def test_old_links_keep_relevance_and_new_ones_name_the_method(page: AppTest) -> None:
    """Links of earlier versions named no method where they showed relevance."""
    run(page)
    assert sent_to(page)["method"]["title"] == "AttnLRP"  # recommended
    run(page, view="relevance")
    assert sent_to(page)["method"]["title"] == "Relevance"
    control(page.selectbox, "target").set_value(5).run()
    assert address(page)["method"] == "relevance" and address(page)["view"] == "relevance"


@pytest.mark.usefixtures("verdicts")
def test_class_rather_than_another_is_explained(page: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = set()
    judge = faithfulness_correlation.masks_are_informative

    def noted(drops: Any, output: float | None = None) -> bool:
        outputs.add(output)
        return judge(drops, output)

    monkeypatch.setattr(faithfulness_correlation, "masks_are_informative", noted)
    run(page, view="relevance", method="attnlrp", target="dog", against="cat", panel="faithfulness")
    told = sent_to(page)
    assert told["method"]["target"] == "dog rather than cat"
    assert (told["answers"]["target"], told["answers"]["against"]) == ("dog", "cat")
    checkpoint = vit.load_checkpoint("cifar10")
    picture = vit.decode_image(samples.read("cat"))
    expected = vit.heatmap(checkpoint, picture, "attnlrp", "dog", against="cat").flatten()
    assert np.allclose(told["computed"]["values"][1:], expected, rtol=1e-3, atol=1e-6)
    assert "Measured by the change of “dog rather than cat”" in texts(page, "caption").replace("\\", "")
    assert any("target=5, against=3" in one.value for one in page.code)
    assert outputs == {None}  # logits have a unit; the record holds those of the classes, not their difference
    run(page, against="elk")  # no such class
    assert sent_to(page)["method"]["target"] == "dog"
