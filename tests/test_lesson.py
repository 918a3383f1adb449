"""The lesson: its model equals the checkpoint's, its file is small and self-contained, and no text is missing."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from commands import Command, check_mistake
from tiny import LABELS

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.load import load_checkpoint
from vit.errors import UserError
from vit.images import samples
from vit.images.preprocess import Preprocess
from vit.lesson import page as module
from vit.lesson.page import MAX_FILE, Language, as_text, expected_size, lesson
from vit.lesson.weights import BITS, PackedWeights, pack_weights, unpack_weights
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer
from vit.view.web import joined, read

ROOT = Path(__file__).parents[1]
WEB = ROOT / "vit" / "lesson" / "web"
CASES: dict[str, Any] = json.loads((ROOT / "tests" / "web" / "lesson_cases.json").read_text(encoding="utf-8"))
WORDS: dict[str, dict[str, str]] = json.loads((WEB / "words.json").read_text())
LANGUAGES = get_args(Language)


@pytest.fixture
def opened(preprocess: Preprocess) -> Callable[..., Checkpoint]:
    """Return `opened(model)`: a checkpoint of that model, named tiny."""
    return lambda model: Checkpoint("tiny", Path(), model, model.config, LABELS, preprocess, {}, "", {}, "")


def weights_of(case: dict[str, Any]) -> dict[str, np.ndarray]:
    return unpack_weights(PackedWeights(case["tensors"], base64.b64decode(case["packed"])))


@pytest.mark.parametrize("case", CASES["models"], ids=lambda case: case["name"])
def test_torch_computes_the_expected_values_of_the_javascript_tests(case: dict[str, Any]) -> None:
    config = ViTConfig(**case["config"])
    model = VisionTransformer(replace(config, qkv_bias=True, layer_scale=None)).eval()
    weights = weights_of(case)
    assert set(weights) == set(model.state_dict())
    model.load_state_dict({name: torch.tensor(weights[name]).view_as(to) for name, to in model.state_dict().items()})
    shape = (1, config.channels, *config.image_size)
    pixels = torch.frombuffer(bytearray(base64.b64decode(case["pixels"])), dtype=torch.float32).reshape(shape)
    with torch.inference_mode():
        output = model(pixels, output_attentions=True)
    assert np.allclose(model.probabilities(output.logits)[0], case["probabilities"], atol=1e-5)
    assert output.attentions is not None
    assert np.allclose(torch.cat(output.attentions), case["attentions"], atol=1e-5)


def test_weights_are_rounded_to_half_a_step(build: Callable[..., VisionTransformer]) -> None:
    model = build()
    weights, state = unpack_weights(pack_weights(model)), model.state_dict()
    assert set(weights) == set(state)
    for name, found in weights.items():
        wanted = state[name].numpy().reshape(found.shape)
        step = np.abs(wanted).max(1, keepdims=True) / (2 ** (BITS - 1) - 1)
        assert (np.abs(found - wanted) <= 0.51 * step + 1e-7 * np.abs(wanted)).all(), name
    small = "blocks.0.attn.qkv.bias"
    assert (weights[small] == state[small].numpy()).all()


UNSUITED: dict[str, dict[str, Any]] = {
    "not a plain MLP with GELU": {"activation": "silu"},
    "layers that the lesson does not support": {"norm_pre": True},
    "its pooling is 'map'": {"pool": "map", "prefix": ()},
    "has 401 tokens": {"image_size": (160, 160)},
}


@pytest.mark.parametrize("reason", UNSUITED)
def test_unsupported_model_is_refused(
    build: Callable[..., VisionTransformer], opened: Callable[..., Checkpoint], reason: str
) -> None:
    with pytest.raises(UserError, match=f"tiny does not fit into a lesson: .*{reason}"):
        lesson(opened(build(**UNSUITED[reason])))


def test_unsupported_preprocessing_is_refused(
    build: Callable[..., VisionTransformer], opened: Callable[..., Checkpoint]
) -> None:
    nearest = Preprocess((32, 32), interpolation="nearest")
    with pytest.raises(UserError, match="nearest pixel"):
        lesson(replace(opened(build()), preprocess=nearest))
    with pytest.raises(UserError, match="no classes of its own"):
        lesson(replace(opened(build()), labels=()))


def test_model_without_large_matrices_keeps_its_weights(build: Callable[..., VisionTransformer]) -> None:
    model = build(dim=8, heads=1, mlp_dim=8, depth=1, channels=1)
    for name, weights in unpack_weights(pack_weights(model)).items():
        assert (weights.ravel() == model.state_dict()[name].numpy().ravel()).all()


def test_large_model_is_refused(
    build: Callable[..., VisionTransformer], opened: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_FILE", 100_000)
    with pytest.raises(UserError, match=r"The lesson of tiny would take 0\.\d MB; it may take 0\."):
        lesson(opened(build()))


def test_shipped_checkpoint_fits_and_only_the_files_own_script_may_run() -> None:
    content = lesson(load_checkpoint("cifar10"))
    assert len(content) < MAX_FILE
    text = content.decode("utf-16")
    policy = html.unescape(re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)[0])
    scripts = re.findall(r"<script type=\"module\">(.*?)</script>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert len(scripts) == 1 and f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'") and "connect-src" not in policy and "http" not in policy
    assert not re.search(r'(?:src|href)="', text)


def test_size_is_known_beforehand() -> None:
    checkpoint = load_checkpoint("cifar10")
    parameters = sum(one.numel() for one in checkpoint.model.parameters())
    assert len(lesson(checkpoint)) == pytest.approx(expected_size(parameters), rel=0.05)


def test_letters_encode_any_bytes_and_are_safe_in_html() -> None:
    for case in CASES["texts"]:
        text = as_text(base64.b64decode(case["bytes"]))
        assert text == case["text"]
        assert not set(text) & {"\0", "\r", "<"}
        text.encode("utf-16-le")  # fails at half a pair


# ---- texts ----------------------------------------------------------------------------------------------------


def test_every_text_exists_in_every_language() -> None:
    for name, texts in WORDS.items():
        assert set(texts) == set(LANGUAGES), name
        assert all(text.strip() for text in texts.values()), name
        places = [sorted(re.findall(r"\{\w+\}", text)) for text in texts.values()]
        assert all(one == places[0] for one in places), name


# Templates of `sentences.js` that a lesson can show: it has the views attention and rollout, with default settings.
SHOWN_SENTENCES = (
    "cls", "register", "patch", "where", "head", "fusedHeads", "blockAndHeads", "headOfBlocks", "everything",
    "fusedBlocks", "attentionFrom", "attentionTo", "rolloutFrom", "rolloutTo",
)  # fmt: skip


def test_every_text_in_use_is_defined() -> None:
    folders = (WEB, ROOT / "vit" / "view" / "web")
    scripts = "\n".join(path.read_text(encoding="utf-8") for folder in folders for path in sorted(folder.glob("*.js")))
    said = set(re.findall(r'\btranslate\((?:to \? )?"([^"]+)"', scripts))
    said |= set(re.findall(r"\{\{(.+?)\}\}", (WEB / "lesson.html").read_text()))
    templates = json.loads(read("sentences.js").partition("SENTENCES = ")[2].rstrip(";\n"))
    said |= {templates[name] for name in SHOWN_SENTENCES}
    assert len(said) > 60
    assert said <= set(WORDS), said - set(WORDS)
    assert {f"sample.{name}" for name in samples.SAMPLES} <= set(WORDS)
    for step in re.findall(r'\{ name: "(\w+)"', (WEB / "course.js").read_text()):
        assert {f"{step}.{part}" for part in ("title", "text", "task")} <= set(WORDS)
    for kind in re.findall(r'"(\w+)"\]\.map\(\(name\) => new Strip', (WEB / "numbers.js").read_text()):
        assert f"numbers.{kind}" in WORDS


def test_english_texts_equal_the_viewers() -> None:
    sources = joined("standalone.js") + read("viewer.html")
    for name, texts in WORDS.items():
        if name == texts["en"] and name not in sources:
            raise AssertionError(f"the viewer does not say {name!r}")


# ---- the command ----------------------------------------------------------------------------------------------


def test_command_writes_the_file_in_the_named_language(command: Command, saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "lesson.html"
    result = command("lesson", path, "--checkpoint", saved, "--language", "de")
    assert result.status == 0 and str(path) in result.out
    text = path.read_bytes().decode("utf-16")
    assert '<html lang="de">' in text and WORDS["title"]["de"] in text


def test_command_refuses_what_it_cannot_write(command: Command, saved: Path, tmp_path: Path) -> None:
    check_mistake(command("lesson", tmp_path / "lesson.txt", "--checkpoint", saved), "must end in .html")
    check_mistake(command("lesson", tmp_path / "no" / "l.html", "--checkpoint", saved), "cannot be written: No such")
