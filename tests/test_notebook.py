"""`vit.view` in a notebook: its output for anything that holds a model, a picture or attention."""

import base64
import gzip
import html
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from tiny import LABELS, fill

import vit
from vit.checkpoints.input_sizes import resized
from vit.errors import InvalidImage, UserError
from vit.images.pictures import picture_of
from vit.view import explanation
from vit.view.notebook import View
from vit.view.payload import unpack

Build = Callable[..., vit.VisionTransformer]


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))


def held(view: View) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the contents of the page in a cell: the viewer's data and its payloads."""
    srcdoc = re.search(r'srcdoc="([^"]*)"', view._repr_html_())
    assert srcdoc
    page = html.unescape(srcdoc[1])
    said = re.search(r'id="data">(.*?)</script>', page)
    assert said
    document = json.loads(said[1])
    texts = {name: re.search(rf'id="{name}">(.*?)</script>', page) for name in document["payloads"]}
    return document["data"], {name: gzip.decompress(base64.b64decode(text[1])) for name, text in texts.items() if text}


def test_cell_holds_the_payload_of_the_page(checkpoint: vit.Checkpoint, photo: Image.Image, tmp_path: Path) -> None:
    photo.save(tmp_path / "photo.png")
    expected = explanation.explain(checkpoint, (tmp_path / "photo.png").read_bytes()).payload
    for anything in (checkpoint, checkpoint.path, str(checkpoint.path)):
        assert held(vit.view(anything, photo))[1]["payload"] == expected
    from_module = vit.view(checkpoint.model, photo, preprocess=checkpoint.preprocess)
    assert held(from_module)[1]["payload"] == expected


def test_module_and_its_file_are_shown_alike(photo: Image.Image, tmp_path: Path) -> None:
    module = fill(timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=3))
    timm.models.save_for_hf(module, tmp_path, model_args={"img_size": 32})
    saved = vit.load_checkpoint(tmp_path)
    there = vit.view(saved, photo, method="relevance", size=32)
    here = vit.view(module, photo, method="relevance", preprocess=resized(saved.preprocess, (32, 32)))
    assert held(here)[1] == held(there)[1]
    torch.testing.assert_close(here.heatmap(), vit.heatmap(saved, photo, "relevance", size=32))


@pytest.mark.parametrize("method", ["attention", "rollout", "relevance", "gradcam", "legrad"])
def test_maps_equal_those_of_the_other_interfaces(checkpoint: vit.Checkpoint, photo: Image.Image, method: str) -> None:
    view = vit.view(checkpoint, photo, method=method, target="cat")
    assert view.selection.method == method
    torch.testing.assert_close(view.heatmap(), vit.heatmap(checkpoint, photo, method, "cat"))
    data, payloads = held(view)
    if data["computed"]:
        values = view.record.heatmap(torch.tensor(data["computed"]["values"]))
        torch.testing.assert_close(values, view.heatmap(), rtol=1e-5, atol=1e-7)
    assert ("chain" in payloads) == (method == "relevance")


def test_settings_from_code_are_shown(checkpoint: vit.Checkpoint, photo: Image.Image) -> None:
    view = vit.view(checkpoint, photo)
    view.block, view.head, view.query, view.direction = 0, 1, (1, 2), "to"
    assert view.selection == (0, 1, 7, "to", "attention")
    torch.testing.assert_close(view.heatmap(), view.record.heatmap(view.record.columns(0, [7])[1, :, 0]))
    seed = held(view)[0]["seed"]
    assert [seed[field] for field in ("block", "head", "token", "pinned", "direction")] == [0, 1, 7, True, "to"]
    view.method, view.target, view.query = "relevance", "dog", None
    assert (view.selection.query, view.selection.method, view.target) == (None, "relevance", "dog")


def test_settings_can_be_passed_at_construction(checkpoint: vit.Checkpoint, photo: Image.Image) -> None:
    view = vit.view(checkpoint, photo, block=0, head="max", query="cls", direction="to", size=64, smooth=True)
    assert view.selection == (0, "max", 0, "to", "attention")
    assert view.record.grid == (8, 8) and held(view)[0]["seed"]["smooth"] is True


def test_frame_is_self_contained_and_sandboxed(checkpoint: vit.Checkpoint, photo: Image.Image) -> None:
    cell = vit.view(checkpoint, photo)._repr_html_()
    assert 'sandbox="allow-scripts" allowfullscreen' in cell
    assert "default-src 'none'" in cell
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", html.unescape(cell))
    assert cell.endswith("</iframe>") and "Trust this notebook" in cell


def test_two_views_have_distinct_ids(checkpoint: vit.Checkpoint, photo: Image.Image) -> None:
    one, other = vit.view(checkpoint, photo), vit.view(checkpoint, photo)
    assert held(one)[0]["name"] != held(other)[0]["name"]
    assert held(one)[0]["name"] == held(one)[0]["name"]  # however often it is displayed


def test_foreign_text_is_escaped(checkpoint: vit.Checkpoint, photo: Image.Image) -> None:
    hostile = '</iframe><script>hurt()</script>"onload="hurt()'
    labels = [hostile, *LABELS[1:]]
    view = vit.view(checkpoint.model, photo, labels=labels, method="relevance", target=0)
    cell = view._repr_html_()
    assert "hurt()" not in re.sub(r'srcdoc="[^"]*"', "", cell)
    assert held(view)[0]["method"]["target"] == hostile


# --- Attention without a model --------------------------------------------------------------------------------


@torch.no_grad()
def attentions(build: Build, **changes: Any) -> tuple[torch.Tensor, ...]:
    pixels = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return build(**changes)(pixels, output_attentions=True).attentions


@pytest.mark.parametrize("shape", ["outputs", "one tensor", "numpy", "half"])
def test_bare_attention_is_shown_unchanged(build: Build, photo: Image.Image, shape: str) -> None:
    outputs = attentions(build)
    whole = torch.cat(outputs)  # (L, H, N, N)
    anything = {
        "outputs": outputs,
        "one tensor": whole,
        "numpy": [one.numpy() for one in outputs],
        "half": whole.half(),
    }
    view = vit.view(anything[shape], photo, grid=(4, 4), prefix=("cls",))
    view.block, view.head, view.query = 1, 0, (2, 3)
    tolerance = 2e-3 if shape == "half" else 1e-6
    torch.testing.assert_close(view.heatmap().flatten(), whole[1, 0, 12, 1:], rtol=0, atol=tolerance)
    sections = unpack(held(view)[1]["payload"])[1]
    drawn = sections["maps"][1, 0, 12] / 255 * sections["scales"][1, 0, 12]
    np.testing.assert_allclose(drawn, whole[1, 0, 12, 1:], atol=3e-3)


def test_zero_weights_stay_zero() -> None:
    view = vit.view(torch.eye(16).expand(2, 3, 16, 16))
    assert view.heatmap().flatten()[1:].max() < 1e-6


def test_square_grid_is_inferred(build: Build) -> None:
    assert vit.view(attentions(build)).record.prefix == ("cls",)
    assert vit.view(attentions(build, prefix=(), pool="mean")).record.prefix == ()
    registers = vit.view(attentions(build, prefix=("cls", "reg1", "reg2")), grid=(4, 4))
    assert registers.record.prefix == ("prefix 0", "prefix 1", "prefix 2")


def test_large_maps_are_sent_as_maps() -> None:
    """Queries that reproduce such a map would be as wide as there are tokens."""
    view = vit.view(torch.rand(1, 1, 400, 400).softmax(-1), grid=(20, 20))
    assert unpack(held(view)[1]["payload"])[0]["kind"] == "maps"


ROWS = torch.rand(1, 2, 17, 17).softmax(-1)
REFUSED_ATTENTION = {
    "a batch": (ROWS.expand(3, 2, 17, 17)[None], "This is the attention of 3 pictures. Choose one of them"),
    "no softmax": (torch.randn(1, 2, 17, 17), "Rows of attention must sum to 1"),
    "not a number": (ROWS * torch.nan, "Rows of attention must sum to 1"),
    "not square": (ROWS[..., :16], "Attention must be \\(heads, tokens, tokens\\)"),
    "of other sizes": ([ROWS, ROWS[:, :1]], "the same in every block"),
    "too flat": (ROWS[0, 0], "Attention of a block must be"),
    "no square": (torch.eye(15).expand(1, 1, 15, 15), "The patches among 15 tokens make no square"),
    "nothing": ([], "There is no attention to show"),
}


@pytest.mark.parametrize("kind", REFUSED_ATTENTION)
def test_invalid_attention_is_refused(kind: str) -> None:
    attention, said = REFUSED_ATTENTION[kind]
    with pytest.raises(UserError, match=said):
        vit.view(attention)


def test_grid_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match=r"17 tokens are not the 16 patches of grid=\(4, 4\) and the 2 tokens"):
        vit.view(ROWS, grid=(4, 4), prefix=("cls", "dist"))


# --- Pictures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["file", "path", "bytes", "array", "reals", "tensor", "batch"])
def test_picture_is_the_same_in_every_form(photo: Image.Image, tmp_path: Path, form: str) -> None:
    photo.save(tmp_path / "photo.png")
    array = np.asarray(photo)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    forms = {
        "file": str(tmp_path / "photo.png"),
        "path": tmp_path / "photo.png",
        "bytes": (tmp_path / "photo.png").read_bytes(),
        "array": array,
        "reals": array / 255,
        "tensor": tensor,
        "batch": tensor[None].float() / 255,
    }
    assert np.array_equal(picture_of(forms[form]), array)


def test_grey_pictures_are_accepted() -> None:
    levels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for grey in (levels, levels[..., None], torch.from_numpy(levels), torch.from_numpy(levels)[None]):
        assert np.array_equal(np.asarray(picture_of(grey))[..., 1], levels)


@pytest.mark.parametrize(
    ("picture", "said"),
    [
        ("nowhere.jpg", "nowhere.jpg cannot be read: No such file"),
        (b"nothing", "This file is not a picture"),
        (torch.randn(3, 8, 8), "Pass the picture before it is normalised"),
        (np.full((8, 8, 3), np.nan), "Pass the picture before it is normalised"),
        (np.zeros((8, 8, 4), np.uint8), "A picture must have 1 or 3 channels"),
        (np.zeros((2, 8, 8, 3), np.uint8), "is not one picture"),
        (3, "A int is not a picture"),
    ],
)
def test_non_picture_is_refused(picture: Any, said: str) -> None:
    with pytest.raises(InvalidImage, match=said):
        picture_of(picture)


# --- Refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"method": "magic"}, "There is no method 'magic' here. Choose from attention, rollout, similar, att"),
        ({"method": "pool"}, "There is no method 'pool' here."),
        ({"method": "relevance", "target": "wolf"}, "There is no class 'wolf'."),
        ({"block": 7}, "There is no block 7: they run from 0 to 1."),
        ({"head": "sum"}, "There is no head 'sum'. Choose from mean, max, min."),
        ({"query": (9, 9)}, "There is no patch 9,9"),
        ({"direction": "up"}, "There is no direction 'up'."),
        ({"colour": "red"}, "There is no setting 'colour'. Choose from"),
        ({"grid": (4, 4)}, "grid and prefix are for attention alone"),
    ],
)
def test_request_without_an_answer_is_refused(
    checkpoint: vit.Checkpoint, photo: Image.Image, question: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError) as error:
        vit.view(checkpoint, photo, **question)
    assert str(error.value).startswith(said)


def test_bare_attention_has_neither_classes_nor_features() -> None:
    for method, said in (("relevance", "There are no classes here"), ("similar", "There is no method 'similar' here")):
        with pytest.raises(UserError, match=said):
            vit.view(ROWS, method=method)


def test_unsupported_view_is_refused(checkpoint: vit.Checkpoint) -> None:
    for arguments, said in (((checkpoint,), "A picture is missing"), ((object(),), "A object cannot be shown")):
        with pytest.raises(UserError, match=said):
            vit.view(*arguments)


def test_package_is_callable_before_and_after_its_modules_are_imported() -> None:
    code = (
        "import sys, vit; assert callable(vit.view) and 'torch' not in sys.modules\n"
        "import vit.view.selection; assert callable(vit.view) and 'torch' not in sys.modules\n"
        "from vit import view; assert view.Selection().block == -1"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
