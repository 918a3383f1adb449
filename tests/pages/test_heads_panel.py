"""Panel Heads of Explore: statistics of every head, over one picture or many."""

import base64
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from streamlit.testing.v1 import AppTest

import vit
from pages.looking.panels import faithfulness, heads_over_pictures, what_if
from pages.shared import long_passes
from pages.training import run_records
from tests.pages.controls import control, press, run
from tests.pages.pictures import png
from vit.explain.head_statistics import statistics
from vit.explain.record import record
from vit.images import samples


def test_selected_head_of_the_atlas_is_shown(page: AppTest) -> None:
    run(page, panel="heads")
    assert any(one.value == "Looks 8.4 px far on average, less than all others." for one in page.caption)
    statistic = control(page.selectbox, "statistic")
    explained = [line.partition("**:")[0].removeprefix("**") for line in statistic.help.split("  \n")]
    assert explained == [*statistic.options, "Uniform attention"]
    page.button(key="suggest local").click().run()
    assert not page.exception
    assert (page.query_params["block"], page.query_params["head"]) in ((["1"], ["3"]), ("1", "3"))


@pytest.mark.parametrize("name", ["object", "effect", "distance", "cls"])
def test_every_statistic_of_the_atlas_is_drawn(page: AppTest, name: str) -> None:
    run(page, panel="heads")
    page.selectbox(key="statistic").set_value(name).run()
    assert not page.exception
    sent = json.loads(page.get_by_key("heads grid").proto.json)
    assert [len(row) for row in sent["cells"]] == [4] * 6 and "Block 6, head 4: " in sent["cells"][5][3]["text"]
    page.segmented_control(key="over").set_value("the samples").run() if name != "object" else None
    assert not page.exception


def many(page: AppTest, **link: str) -> AppTest:
    """The atlas of heads over many pictures."""
    run(page, panel="heads", **link)
    return page.segmented_control(key="over").set_value("many pictures").run()


def shows_heads(page: AppTest) -> bool:
    return any(getattr(one, "key", None) == "suggest local" for one in page.button)


def depth(page: AppTest) -> tuple[str, np.ndarray, np.ndarray]:
    """Return the title, numbers and bar lengths of the chart over blocks."""
    specs = [json.loads(one.proto.spec) for one in page.get("plotly_chart")]
    (spec,) = (spec for spec in specs if "pictures" in spec["layout"].get("title", {}).get("text", ""))
    found = spec["data"][0]
    y, bars = (
        np.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"])
        for packed in (found["y"], found["error_y"]["array"])
    )
    return spec["layout"]["title"]["text"], y, bars


def test_statistic_of_the_atlas_is_in_the_link(page: AppTest) -> None:
    run(page, panel="heads", statistic="self")
    assert page.selectbox(key="statistic").value == "self"
    page.selectbox(key="statistic").set_value("entropy").run()
    assert page.query_params["statistic"] in ("entropy", ["entropy"])


def test_uploaded_pictures_are_averaged_and_broken_ones_named(page: AppTest, forwards: list[str]) -> None:
    many(page)
    assert page.selectbox(key="heads pictures").value == "upload" and not shows_heads(page)
    files = [(f"{side}.png", png(side, 40, color=color), "image/png") for side, color in ((60, "teal"), (70, "red"))]
    page.file_uploader(key="heads upload").set_value([*files, ("b.png", b"no picture", "image/png")]).run()
    assert not page.exception
    assert page.error[0].value == "A picture could not be read." and any("b.png" in one.value for one in page.code)
    checkpoint = vit.load_checkpoint("cifar10")
    pixels = [checkpoint.preprocess(vit.decode_image(content)) for _, content, _ in files]
    wanted = [statistics(record(checkpoint.model, one), 4)["distance"].values for one in pixels]
    title, means, bars = depth(page)
    assert "Mean over 2 pictures" in title
    np.testing.assert_allclose(means, torch.stack(wanted).mean(0).flatten(), rtol=1e-5)
    np.testing.assert_allclose(bars, torch.stack(wanted).std(0).flatten(), rtol=1e-3, atol=1e-4)
    before = len(forwards)
    control(page.selectbox, "statistic").set_value("cls").run()
    assert not page.exception and len(forwards) == before


def test_computation_over_many_pictures_can_be_stopped_and_continued(
    page: AppTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads_over_pictures, "SLICE", 0.0)
    many(page)
    page.selectbox(key="heads pictures").set_value("shapes").run()  # 128 in parts of 31, one in each run
    page.button(key="heads stop").click().run()
    assert not page.exception
    said = next(one.value for one in page.caption if one.value.startswith("Stopped"))
    assert said in ("Stopped after 31 of 128 pictures.", "Stopped after 62 of 128 pictures.")
    assert said.split()[2] in depth(page)[0]
    page.button(key="heads resume").click().run()
    for _ in range(5):
        page.run()
    assert not page.exception and not any(one.value.startswith("Stopped") for one in page.caption)
    assert any("the 95% interval over 128 pictures" in one.value for one in page.caption)
    assert "Mean over 128 pictures" in depth(page)[0]


def test_slow_computation_says_so_and_waits(
    page: AppTest, monkeypatch: pytest.MonkeyPatch, forwards: list[str]
) -> None:
    monkeypatch.setattr(long_passes, "BUTTON_ABOVE_SECONDS", 0.0)
    many(page)
    page.selectbox(key="heads pictures").set_value("shapes").run()
    before = len(forwards)
    button = next(one for one in page.button if one.label.startswith("Look at 128 pictures ("))
    assert not shows_heads(page)
    page.run()
    assert len(forwards) == before
    press(page, button.label)
    assert not page.exception


@pytest.mark.usefixtures("verdicts", "checkpoints")  # a checkpoint of its own: nothing is measured with it yet
@pytest.mark.parametrize("panel", ["faithfulness", "what-if"])
def test_measured_results_stay_when_the_machine_becomes_busy(
    page: AppTest, monkeypatch: pytest.MonkeyPatch, panel: str
) -> None:
    run(page, panel=panel)
    for module in (faithfulness, what_if):
        monkeypatch.setattr(module, "BUTTON_ABOVE_SECONDS", 0.0)  # recomputing would exceed the limit
    run(page)
    assert not [one for one in page.button if one.label.startswith("Measure")]
    page.selectbox(key="target").set_value(5).run()  # not measured yet
    assert not page.exception and [one for one in page.button if one.label.startswith("Measure")]


def test_only_datasets_of_the_data_folder_are_offered(
    page: AppTest, checkpoints: Path, trained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIT_DATA_ROOTS", str(checkpoints / "data"))
    for root in (checkpoints / "data" / "mine", checkpoints / "elsewhere"):
        for label in ("cat", "dog"):
            (root / label).mkdir(parents=True)
            for side in (20, 30):
                (root / label / f"{side}.png").write_bytes(png(side, side))
    config = checkpoints / "runs" / trained.removeprefix("run-") / "config.json"
    for root, offered in ((checkpoints / "elsewhere", False), (checkpoints / "data" / "mine", True)):
        config.write_text(json.dumps({"data": f"folder:{root}"}))
        run_records.forget()
        many(page, checkpoint=trained)
        assert not page.error
        titles = page.selectbox(key="heads pictures").options
        assert not any("elsewhere" in title for title in titles)
        assert (titles[0] == "Test pictures: mine (folder), which it learnt from") == offered
    page.selectbox(key="heads pictures").set_value(f"folder:{root}").run()
    assert "Mean over 2 pictures" in depth(page)[0]


def test_numbers_over_the_samples_use_the_selected_number_of_heads(page: AppTest, headless: str) -> None:
    page.query_params.update({"checkpoint": headless, "heads": "4", "panel": "heads", "over": "samples"})
    for heads in (4, 8):
        page.run() if heads == 4 else page.selectbox(key="heads").set_value(heads).run()
        assert not page.exception and not page.error
        assert [len(row) for row in json.loads(page.get_by_key("heads grid").proto.json)["cells"]] == [heads] * 2


def test_numbers_over_the_samples_use_the_checkpoints_preprocessing(page: AppTest, checkpoints: Path) -> None:
    shutil.copytree(checkpoints / "cifar10", checkpoints / "darker")
    file = checkpoints / "darker" / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"image_mean": [0.9, 0.9, 0.9]}))
    assert vit.load_checkpoint("cifar10").hash == vit.load_checkpoint("darker").hash
    for name in ("cifar10", "darker"):
        assert not run(page, checkpoint=name, panel="heads", over="samples", statistic="distance").error
        checkpoint = vit.load_checkpoint(name)
        inputs = [checkpoint.preprocess(vit.decode_image(samples.read(sample))) for sample in samples.SAMPLES]
        wanted = torch.stack([statistics(record(checkpoint.model, one), 4)["distance"].values for one in inputs])
        np.testing.assert_allclose(depth(page)[1], wanted.mean(0).flatten(), rtol=1e-4)
