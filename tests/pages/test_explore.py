"""The main page without a browser: empty, normal and error state."""

import io
import shutil
from pathlib import Path

import pytest
from conftest import TINY, fill
from PIL import Image
from safetensors.torch import load_file, save_file
from streamlit.testing.v1 import AppTest

import vit
from vit import samples
from vit.images import Preprocess
from vit.model import VisionTransformer, ViTConfig
from vit.viewer.payload import unpack

ROOT = Path(__file__).parents[2]
WAIT = 120  # [s]; the first run imports torch


@pytest.fixture
def page(checkpoints: Path) -> AppTest:
    """The app with one small checkpoint, not yet run."""
    return AppTest.from_file(str(ROOT / "app.py"), default_timeout=WAIT)


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the shipped checkpoint under its own name."""
    shutil.copytree(ROOT / "checkpoints" / "cifar10", tmp_path / "cifar10")
    monkeypatch.setenv("VIT_CHECKPOINTS", str(tmp_path))
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    return tmp_path


def png(*size: int, color: str = "teal") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, color).save(out, "PNG")
    return out.getvalue()


def payload(page: AppTest) -> tuple[dict, dict]:
    """What the page last sent to the viewer."""
    data = page.get_by_key("feeder").proto.bytes
    return unpack(data[64:])


def test_page_opens_with_a_sample_already_explained(page: AppTest) -> None:
    page.run()
    assert not page.exception and not page.error
    header, _ = payload(page)
    assert header["grid"] == [8, 8] and header["prefix"] == ["cls"]
    width, height = Image.open(samples.SAMPLES["cat"].path).size
    assert (header["picture"]["width"], header["picture"]["height"]) == (width, height)


def test_attention_on_the_page_is_what_the_model_used(page: AppTest, checkpoints: Path) -> None:
    page.run()
    checkpoint = vit.load_checkpoint(checkpoints / "cifar10")
    pixels = checkpoint.preprocess(vit.decode_image(samples.read("cat")))
    attention = checkpoint.model(pixels, output_attentions=True).attentions[2][0].detach().numpy()  # (H, N, N)
    _, sections = payload(page)
    shown = sections["maps"][2] / 255 * sections["scales"][2][..., None]  # (H, N, P)
    assert abs(shown - attention[..., 1:]).max() < 2 / 510 * attention.max()


def test_upload_replaces_the_sample(page: AppTest) -> None:
    page.run()
    page.file_uploader(key="upload").upload("photo.png", png(300, 200)).run()
    assert not page.exception and not page.error
    header, _ = payload(page)
    assert (header["picture"]["width"], header["picture"]["height"]) == (300, 200)


def gif(count: int) -> bytes:
    frames = [Image.new("RGB", (300, 200), (60 * i, 120, 200)) for i in range(count)]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    return out.getvalue()


def test_a_frame_of_an_animation_can_be_chosen(page: AppTest) -> None:
    page.run()
    assert not page.slider
    page.file_uploader(key="upload").upload("wheel.gif", gif(4)).run()
    assert not page.exception and (page.slider[0].min, page.slider[0].max, page.slider[0].value) == (1, 4, 1)
    _, first = payload(page)
    page.slider[0].set_value(3).run()
    assert not page.exception
    _, third = payload(page)
    shown = Image.open(io.BytesIO(third["picture"].tobytes())).convert("RGB").getpixel((150, 100))
    assert abs(shown[0] - 120) < 4 and first["picture"].tobytes() != third["picture"].tobytes()
    assert "frame=2" in next(code.value for code in page.code if "import vit" in code.value)


def test_the_code_of_the_view_names_sample_or_file(page: AppTest) -> None:
    page.query_params["block"] = "2"
    page.run()
    program = next(code.value for code in page.code if "import vit" in code.value)
    assert 'samples.read("cat")' in program and "block=2" in program
    page.file_uploader(key="upload").upload("photo.png", png(300, 200)).run()
    program = next(code.value for code in page.code if "import vit" in code.value)
    assert 'Path("photo.png").read_bytes()' in program


def test_broken_upload_is_one_sentence_and_keeps_a_picture(page: AppTest) -> None:
    page.run()
    page.file_uploader(key="upload").upload("photo.png", png(300, 200)[:80]).run()
    assert not page.exception
    assert len(page.error) == 1 and "\n" not in page.error[0].value
    assert payload(page)[0]["tokens"] == 65


def test_broken_upload_falls_back_to_the_sample_of_the_link(page: AppTest) -> None:
    page.query_params["sample"] = "temple"
    page.run()
    page.file_uploader(key="upload").upload("photo.png", b"no picture").run()
    assert any(samples.SAMPLES["temple"].title in caption.value for caption in page.caption)
    assert payload(page)[0]["picture"]["width"] == Image.open(samples.SAMPLES["temple"].path).width


def test_page_says_what_a_small_model_knows(page: AppTest) -> None:
    page.run()
    said = " ".join(caption.value for caption in page.caption)
    assert "airplane, automobile" in said and "a guess" in said


def test_larger_input_gives_more_patches(page: AppTest) -> None:
    page.run()
    page.selectbox(key="size").set_value((64, 64)).run()
    assert not page.exception
    assert payload(page)[0]["grid"] == [16, 16]


def test_link_chooses_sample_and_input_size(page: AppTest) -> None:
    page.query_params["sample"] = "temple"
    page.query_params["factor"] = "2"
    page.run()
    assert not page.exception
    width, height = Image.open(samples.SAMPLES["temple"].path).size
    header, _ = payload(page)
    assert (header["picture"]["width"], header["picture"]["height"]) == (width, height)
    assert header["grid"] == [16, 16]


def test_links_to_what_is_not_here_are_told(page: AppTest) -> None:
    page.query_params["checkpoint"] = "nobody"
    page.query_params["size"] = "99999"
    page.run()
    assert not page.exception
    assert any("no checkpoint nobody" in info.value for info in page.info)
    assert any("99999 px is not offered" in caption.value for caption in page.caption)


@pytest.fixture
def headless(checkpoints: Path) -> str:
    """A checkpoint whose number of heads no file and no custom tells."""
    model = fill(VisionTransformer(ViTConfig(**TINY | {"dim": 96, "heads": 4})))
    vit.save_checkpoint(checkpoints / "whole", model, list("abcde"), Preprocess((32, 32)))
    weights = load_file(checkpoints / "whole" / "model.safetensors")
    (checkpoints / "headless").mkdir()
    save_file(weights, checkpoints / "headless" / "w.safetensors")
    return "headless"


def test_a_number_of_heads_that_cannot_be_is_told_and_asked_again(page: AppTest, headless: str) -> None:
    page.query_params["checkpoint"] = headless
    page.query_params["heads"] = "5"
    page.run()
    assert not page.exception
    assert "5" in page.error[0].value
    page.selectbox(key="heads").set_value(4).run()
    assert not page.exception and not page.error
    assert payload(page)[0]["heads"] == 4
    assert any("You chose 4" in warning.value for warning in page.warning)


def test_chosen_heads_are_remembered_when_one_comes_back(page: AppTest, headless: str) -> None:
    page.query_params["checkpoint"] = headless
    page.run()
    page.selectbox(key="heads").set_value(4).run()
    page.selectbox(key="checkpoint").set_value("cifar10").run()
    page.selectbox(key="checkpoint").set_value(headless).run()
    assert not page.exception
    assert payload(page)[0]["heads"] == 4


def test_weights_that_lack_a_tensor_are_told_even_where_heads_are_asked(
    page: AppTest, headless: str, checkpoints: Path
) -> None:
    file = checkpoints / headless / "w.safetensors"
    weights = load_file(file)
    save_file({name: tensor for name, tensor in weights.items() if "layer.1.attention.attention" not in name}, file)
    page.query_params["checkpoint"] = headless
    page.query_params["heads"] = "4"
    page.run()
    assert not page.exception and page.error


@pytest.mark.parametrize("name", ["../../etc/passwd", "<img src=x>", "nobody", ""])
def test_hostile_link_shows_the_defaults(page: AppTest, name: str) -> None:
    for key in (
        "sample",
        "factor",
        "precision",
        "panel",
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
    page.run()
    assert not page.exception and not page.error
    assert payload(page)[0]["grid"] == [8, 8]


def test_without_checkpoints_the_page_says_how_to_get_one(page: AppTest, checkpoints: Path) -> None:
    shutil.rmtree(checkpoints / "cifar10")
    page.run()
    assert not page.exception
    assert "python -m vit train" in page.info[0].value


def test_damaged_checkpoint_is_named_and_the_others_stay(page: AppTest, checkpoints: Path) -> None:
    shutil.copytree(checkpoints / "cifar10", checkpoints / "torn")
    weights = checkpoints / "torn" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    page.run()
    assert not page.exception
    assert page.selectbox(key="checkpoint").options == ["cifar10"]
    assert any("torn" in caption.value for caption in page.caption)


@pytest.fixture
def trained(checkpoints: Path, saved: Path) -> str:
    """A run with a best checkpoint; its name in links."""
    for run in ("20260101-120000-tiny-aaaa", "20260102-120000-tiny-bbbb"):
        folder = checkpoints / "runs" / run
        shutil.copytree(saved, folder / "checkpoints" / "best")
        (folder / "config.json").write_text("{}")
        (folder / "about.json").write_text('{"name": "Tiny <b>"}')
    shutil.rmtree(saved)  # it lies among the other checkpoints
    return f"run-{run}"


def test_the_best_checkpoint_of_a_run_opens_by_its_link(page: AppTest, trained: str) -> None:
    page.query_params["checkpoint"] = trained
    page.run()
    assert not page.exception and not page.error
    assert payload(page)[0]["grid"] == [4, 4]
    assert page.selectbox(key="checkpoint").value == trained
    options = page.selectbox(key="checkpoint").options
    assert options[0] == "cifar10" and options[1] == "Run: Tiny <b> · 90.0%" and len(set(options)) == 3


def test_a_run_that_was_deleted_gives_way_to_the_default(page: AppTest, checkpoints: Path, trained: str) -> None:
    page.query_params["checkpoint"] = trained
    page.run()
    shutil.rmtree(checkpoints / "runs")
    page.run()
    assert not page.exception and not page.error
    assert payload(page)[0]["grid"] == [8, 8]


def test_a_damaged_checkpoint_of_a_run_is_one_sentence(page: AppTest, checkpoints: Path, trained: str) -> None:
    weights = checkpoints / "runs" / trained.removeprefix("run-") / "checkpoints" / "best" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    page.query_params["checkpoint"] = trained
    page.run()
    assert not page.exception
    assert any("cannot be opened" in caption.value for caption in page.caption)


def test_without_kept_checkpoints_those_of_runs_are_offered(page: AppTest, checkpoints: Path, trained: str) -> None:
    shutil.rmtree(checkpoints / "cifar10")
    page.run()
    assert not page.exception and payload(page)[0]["grid"] == [4, 4]


def test_the_map_of_a_class_is_taken_away_without_code(page: AppTest) -> None:
    page.query_params["view"] = "relevance"
    page.run()
    assert not page.exception and not page.error
    assert not any("import vit" in code.value for code in page.code)
