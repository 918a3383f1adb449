"""Conversion: the output of `convert` opens in the other library with the same numbers, or nothing is written.

Every parameter is random. Logits and every attention matrix agree within 1e-5 with those of the library that opens
the files; a changed number of heads or activation in them must be noticed.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from conversions import MODELS, OPENS, REGISTERS, TOLERANCE, ask, assert_same, noise, open_timm, open_transformers
from test_parity import Answer, ask_timm
from tiny import LABELS, TINY, difference, fill
from torch import Tensor, nn

from vit.checkpoints.convert import SUFFIXES, convert, how_to_open, obstacle
from vit.checkpoints.families import timm as timm_family
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.cli.main import main
from vit.errors import UserError
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer

pytestmark = pytest.mark.slow

PRESET_OF = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H"}


class AttentionWithWeights(nn.Module):
    """torchvision's attention with weights returned, which the library's own call discards."""

    def __init__(self, attention: nn.MultiheadAttention, seen: list[Tensor]):
        super().__init__()
        self.attention, self.seen = attention, seen

    def forward(self, *args: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        out, weights = self.attention(*args, need_weights=True, average_attn_weights=False)
        self.seen.append(weights)
        return out, weights


def ask_torchvision(model: nn.Module, images: Tensor) -> Answer:
    collected: list[Tensor] = []
    for block in model.encoder.layers:
        block.self_attention = AttentionWithWeights(block.self_attention, collected)
    return Answer(model(images), collected)


# --- Equal in the other library -------------------------------------------------------------------------------


@torch.inference_mode()
@pytest.mark.parametrize("name", OPENS)
def test_transformers_opens_it_and_computes_the_same(made: Any, tmp_path: Path, name: str) -> None:
    checkpoint = made(name)
    model = open_transformers(convert(checkpoint, tmp_path / "theirs"))
    assert type(model).__name__ == MODELS[name].transformers
    assert_same(checkpoint, ask(model, noise(checkpoint)))


@torch.inference_mode()
def test_timms_architecture_is_that_of_the_models_size(made: Any, tmp_path: Path) -> None:
    small = {"image_size": (28, 28), "num_classes": 2, "layer_scale": 1e-5}
    model = fill(VisionTransformer(ViTConfig.preset("S/14", **small)))
    checkpoint = load_checkpoint(save_checkpoint(tmp_path / "ours", model, ("a", "b"), Preprocess((28, 28))))
    folder = convert(checkpoint, tmp_path / "theirs", "timm")
    assert json.loads((folder / "config.json").read_text())["architecture"] == "vit_small_patch14_dinov2"
    assert_same(checkpoint, ask_timm(open_timm(folder), noise(checkpoint)))
    other = json.loads((convert(made("plain"), tmp_path / "other", "timm") / "config.json").read_text())
    assert other["architecture"] == "vit_base_patch16_224", "timm has no function of these sizes"


@pytest.mark.parametrize("name", timm_family._NAMES)
def test_timms_function_has_the_sizes_of_its_name(name: str) -> None:
    with torch.device("meta"):
        theirs: Any = timm.create_model(name, img_size=224)
    size = theirs.embed_dim, len(theirs.blocks), theirs.blocks[0].attn.num_heads, theirs.patch_embed.patch_size[0]
    config = ViTConfig.preset(f"{PRESET_OF[name.split('_')[1]]}/{size[3]}")
    assert size == (config.dim, config.depth, config.heads, config.patch_size)
    assert f"_patch{size[3]}_" in name and (theirs.norm.eps == 1e-5) is ("_clip_" in name)


@torch.inference_mode()
@pytest.mark.parametrize("name", [name for name, ours in MODELS.items() if ours.timm])
def test_timm_opens_it_and_computes_the_same(made: Any, tmp_path: Path, name: str) -> None:
    checkpoint = made(name)
    model = open_timm(convert(checkpoint, tmp_path / "theirs", "timm"))
    assert_same(checkpoint, ask_timm(model, noise(checkpoint)))


@torch.inference_mode()
@pytest.mark.parametrize("name", [name for name, ours in MODELS.items() if ours.torchvision])
def test_torchvision_opens_it_and_computes_the_same(made: Any, tmp_path: Path, name: str) -> None:
    checkpoint = made(name)
    path = convert(checkpoint, tmp_path / "theirs.pth", "torchvision")
    named: dict[str, Any] = {}
    exec("\n".join(how_to_open(checkpoint, path, "torchvision")).replace('"theirs.pth"', repr(str(path))), named)
    assert_same(checkpoint, ask_torchvision(named["model"].eval(), noise(checkpoint)))


@torch.inference_mode()
@pytest.mark.parametrize(
    "name", ["plain", "registers and LayerScale", "mean, registers, norm after", "SigLIP with classes"]
)
def test_transformers_opens_what_timm_opens(made: Any, tmp_path: Path, name: str) -> None:
    checkpoint = made(name)
    folder = convert(checkpoint, tmp_path / "theirs", "timm")
    model = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    assert difference(model(noise(checkpoint)).logits, checkpoint.model(noise(checkpoint)).logits) <= TOLERANCE
    assert tuple(model.config.id2label.values()) == checkpoint.labels


CHANGED = {
    "heads": ("plain", "transformers", {"num_attention_heads": 4}),
    "activation": ("plain", "transformers", {"hidden_act": "quick_gelu"}),
    "eps": ("registers", "transformers", {"layer_norm_eps": 1e-2}),
    "timm's heads": ("registers", "timm", {"num_heads": 4}),
    "timm's activation": ("plain", "timm", {"act_layer": "gelu_tanh"}),
    "timm's pool": ("plain", "timm", {"global_pool": "avg", "fc_norm": False}),
}


@torch.inference_mode()
@pytest.mark.parametrize("what", CHANGED)
def test_comparison_would_notice_a_wrong_file(made: Any, tmp_path: Path, what: str) -> None:
    name, to, changes = CHANGED[what]
    checkpoint = made(name)
    folder = convert(checkpoint, tmp_path / "theirs", to)
    document = json.loads((folder / "config.json").read_text())
    (document if to == "transformers" else document["model_args"]).update(changes)
    (folder / "config.json").write_text(json.dumps(document))
    model = (open_timm if to == "timm" else open_transformers)(folder)
    with pytest.raises(AssertionError):
        assert_same(checkpoint, (ask_timm if to == "timm" else ask)(model, noise(checkpoint)))


# --- Refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_formats_that_cannot_express_a_model_refuse_it(made: Any, tmp_path: Path, name: str) -> None:
    checkpoint, ours = made(name), MODELS[name]
    expected = {"transformers": bool(ours.transformers), "timm": ours.timm, "torchvision": ours.torchvision}
    assert {to: not obstacle(checkpoint, to) for to in expected} == expected
    for to in (to for to, can in expected.items() if not can):
        path = tmp_path / f"theirs{SUFFIXES.get(to, ('',))[0]}"
        with pytest.raises(
            UserError, match=r"^\w+ has no class that computes exactly what 'tiny' does\. The nearest is"
        ):
            convert(checkpoint, path, to)
        assert not path.exists()


@pytest.mark.parametrize(
    ("changes", "to", "why"),
    [
        ({"eps": 1e-12}, "timm", "the eps of its LayerNorms is 1e-12. Choose transformers or onnx instead."),
        ({"activation": "silu"}, "torchvision", "its activation is silu."),
        ({"norm": "none"}, "transformers", "it has no final LayerNorm."),
        ({"pre_logits": 48}, "transformers", "it has a layer before the head."),
        ({**REGISTERS, "mlp_dim": 100}, "transformers", "its MLP is 100 wide, which is no whole multiple of its width"),
        ({**REGISTERS, "image_size": (32, 48)}, "transformers", "its pictures of 32 x 48 px are no square."),
        ({"prefix": ("reg1", "cls")}, "timm", "its prefix tokens are reg1, cls."),
        ({"norm_pre": True}, "timm", "timm has either a LayerNorm before the first block or a bias"),
        ({"channels": 1}, "torchvision", "its pictures have 1 channel."),
    ],
)  # fmt: skip
def test_refusal_gives_the_reason(tmp_path: Path, changes: dict[str, Any], to: Any, why: str) -> None:
    config = ViTConfig(**TINY | changes)
    half = (0.5,) * config.channels
    size = config.image_size
    preprocess = Preprocess(size, "squash", mean=half, std=half)
    save_checkpoint(tmp_path / "tiny", fill(VisionTransformer(config)), LABELS[: config.num_classes], preprocess)
    assert why in obstacle(load_checkpoint(tmp_path / "tiny"), to)


def test_rotary_with_learnt_positions_is_refused(made: Any) -> None:
    checkpoint = made("DINOv3")
    assert not obstacle(checkpoint, "transformers")
    with torch.no_grad():
        checkpoint.model.pos_embed += 1
    assert "its positions are rotary and learnt at once" in obstacle(checkpoint, "transformers")


# --- Destinations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["transformers", "timm", "torchvision", "onnx"])
def test_nothing_is_overwritten(made: Any, tmp_path: Path, to: Any) -> None:
    checkpoint = made("plain")
    path = tmp_path / f"taken{SUFFIXES.get(to, ('',))[0]}"
    path.write_text("precious")
    with pytest.raises(UserError, match="exists already and is left as it is"):
        convert(checkpoint, path, to)
    assert path.read_text() == "precious"
    folder = tmp_path / f"folder{SUFFIXES.get(to, ('',))[0]}"
    folder.mkdir()
    (folder / "config.json").write_text("precious")
    with pytest.raises(UserError, match="exists already and is left as it is"):
        convert(checkpoint, folder, to)
    assert (folder / "config.json").read_text() == "precious"


@pytest.mark.parametrize("to", ["transformers", "timm"])
def test_checkpoint_is_not_converted_onto_itself(made: Any, to: Any) -> None:
    checkpoint = made("plain")
    with pytest.raises(UserError, match="exists already"):
        convert(checkpoint, checkpoint.path, to)
    assert load_checkpoint(checkpoint.path).hash == checkpoint.hash


@pytest.mark.parametrize("to", ["transformers", "timm"])
def test_empty_folder_is_accepted(made: Any, tmp_path: Path, to: Any) -> None:
    (tmp_path / "empty").mkdir()
    convert(made("plain"), tmp_path / "empty", to)
    assert load_checkpoint(tmp_path / "empty").labels == LABELS


@pytest.mark.parametrize(
    ("to", "name"), [("torchvision", "x.bin"), ("onnx", "x"), ("timm", "x.pth"), ("transformers", "x.onnx")]
)
def test_name_must_suit_the_format(made: Any, tmp_path: Path, to: Any, name: str) -> None:
    with pytest.raises(UserError, match=rf"^For {to} (one file|a folder) is written"):
        convert(made("plain"), tmp_path / name, to)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["plain", "registers"])
@pytest.mark.parametrize("to", ["transformers", "timm"])
def test_failed_conversion_leaves_nothing(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, to: Any
) -> None:
    checkpoint = made(name)
    (tmp_path / "into").mkdir()

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match=r"was not (saved|written): No space left on device"):
        convert(checkpoint, tmp_path / "into" / "theirs", to)
    assert not list((tmp_path / "into").iterdir())


def test_export_has_the_usual_permissions(made: Any, tmp_path: Path) -> None:
    (tmp_path / "usual").mkdir()
    folder = convert(made("plain"), tmp_path / "theirs", "timm")
    assert folder.stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_same_checkpoint_gives_the_same_bytes(made: Any, tmp_path: Path) -> None:
    checkpoint = made("registers")
    one, other = (convert(checkpoint, tmp_path / part / "theirs", "timm") for part in ("one", "other"))
    assert all(path.read_bytes() == (other / path.name).read_bytes() for path in one.iterdir())


def test_code_of_the_card_opens_it(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = convert(made("registers"), tmp_path / "theirs", "timm")
    lines = re.findall(r"^    (.+)$", (folder / "README.md").read_text(), re.M)
    monkeypatch.chdir(tmp_path)
    named: dict[str, Any] = {}
    exec("\n".join(lines), named)
    assert named["model"].num_reg_tokens == 2 and callable(named["transform"])


def test_command_writes_and_prints_how_to_open_it(
    made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = made("registers").path

    def run(*words: str) -> tuple[int, str, str]:
        return main(["convert", *words]), *capsys.readouterr()

    status, out, err = run(str(source), str(tmp_path / "theirs"), "--to", "timm")
    assert status == 0, err
    assert out.splitlines()[0] == str(tmp_path / "theirs")
    assert f"local-dir:{tmp_path}/theirs" in out
    status, _, err = run(str(source), str(tmp_path / "theirs.pth"), "--to", "torchvision")
    assert status == 2 and len(err.splitlines()) == 1
    assert "its prefix tokens are cls, reg1, reg2" in err


def test_assumptions_are_printed_and_written_to_the_card(
    made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise a guessed number of heads would look like a fact in the converted file."""
    source = made("registers")
    lone = convert(source, tmp_path / "timm", "timm") / "model.safetensors"
    lone = shutil.copy(lone, tmp_path / "lone.safetensors")
    capsys.readouterr()
    assert main(["convert", str(lone), str(tmp_path / "again"), "--to", "timm", "--heads", "2"]) == 0
    assert "Assumed: heads: You chose 2 attention heads." in capsys.readouterr().err
    assert "You chose 2 attention heads." in (tmp_path / "again" / "README.md").read_text()
