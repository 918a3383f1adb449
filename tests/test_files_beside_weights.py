"""What lies where weights are expected: parts of them, other libraries' files, quantised and damaged ones."""

import io
import json
import pickle
import shlex
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers
from tiny import difference, fill

from vit.checkpoints import recognition
from vit.checkpoints.load import load_checkpoint
from vit.errors import InvalidCheckpoint

TIMM = {"img_size": 32, "patch_size": 8, "embed_dim": 192, "depth": 1, "num_heads": 3, "num_classes": 5}


def plain() -> dict[str, Any]:
    return fill(timm.models.VisionTransformer(**TIMM)).state_dict()


def keep(tensors: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(tensors, path)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InvalidCheckpoint) as caught:
        load_checkpoint(path)
    return str(caught.value)


def test_weights_in_parts_say_how_they_are_put_together(tmp_path: Path) -> None:
    shards = [keep(plain(), tmp_path / "shards" / f"pytorch_model-0000{part}-of-00002.bin") for part in (1, 2)]
    assert "index, such as" in refusal(shards[0].parent) and "Open their folder" in refusal(shards[0])
    whole = keep(plain(), tmp_path / "model-00001-of-00001.bin")
    assert load_checkpoint(whole).config.num_classes == 5

    parts = tmp_path / "step_5" / "pytorch_model_fsdp_0"
    parts.mkdir(parents=True)
    (parts / "__0_0.distcp").write_bytes(b"PK\3\4")
    assert "format_utils dcp_to_torch" in refusal(parts) and "pytorch_model_fsdp_0" in refusal(parts.parent)

    state = keep({"module": plain()}, tmp_path / "zero" / "mp_rank_00_model_states.pt")
    keep({"optimizer_state_dict": {}}, state.with_name("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"))
    assert load_checkpoint(state.parent).config.num_classes == 5
    empty = {"module": {name: tensor.new_empty(0) for name, tensor in plain().items()}}
    assert "zero_to_fp32.py" in refusal(keep(empty, tmp_path / "renamed.pt"))
    for ranks in (1, 2):
        part = tmp_path / f"zero3_{ranks}" / "global_step100" / "zero_pp_rank_0_mp_rank_00_model_states.pt"
        for rank in range(ranks):
            keep(empty | {"buffer": torch.ones(1)}, part.with_name(part.name.replace("rank_0_", f"rank_{rank}_", 1)))
        keep({}, part.with_name("zero_pp_rank_0_mp_rank_00_optim_states.pt"))
        keep({}, part.parent.parent / "rng_state_0.pth")
        for folder in (part.parent, part.parent.parent):
            assert "python zero_to_fp32.py . weights" in refusal(folder)
        assert "Open their folder" in refusal(part)
    keep({"module": plain()}, tmp_path / "tensors" / "mp_rank_00_model_states.pt")
    keep({"module": plain()}, tmp_path / "tensors" / "mp_rank_01_model_states.pt")
    assert "parts of a model by DeepSpeed" in refusal(tmp_path / "tensors")


@pytest.mark.parametrize("name", ["archive", "my weights"])
def test_an_unpacked_file_opens_after_it_was_packed_as_its_refusal_says(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "unpacked" / name
    with zipfile.ZipFile(keep(plain(), tmp_path / "whole.pth")) as archive:
        for entry in archive.namelist():  # as Safari does
            target = folder / entry.partition("/")[2]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(entry))
    command = f"in the folder that holds {shlex.quote(name)}: zip -0 -r weights.pth {shlex.quote(name)}"
    assert refusal(folder).endswith(command) and refusal(folder.parent).endswith(command)
    assert "one of several files" in refusal(folder / "data.pkl")
    with zipfile.ZipFile(folder.parent / "weights.pth", "w") as archive:  # what the command does, with its own folders
        for path in (folder, *sorted(folder.rglob("*"))):
            archive.write(path, path.relative_to(folder.parent))
    assert torch.load(folder.parent / "weights.pth").keys() == plain().keys()
    assert load_checkpoint(folder.parent / "weights.pth").config.num_classes == 5


def test_a_folder_without_weights_says_what_is_in_it(tmp_path: Path) -> None:
    for name in ("tf_model.h5", "flax_model.msgpack", "optimizer.pt", "model.safetensors.crdownload"):
        keep({}, tmp_path / name / name)
        assert f"holds {name}, but no weights of a model. It needs" in refusal(tmp_path / name)
    (tmp_path / "empty").mkdir()
    assert "holds nothing, but no weights" in refusal(tmp_path / "empty")


def test_long_names_leave_refusals_short(tmp_path: Path) -> None:
    home = tmp_path / ("h" * 200)
    for number in range(6):
        (home / f"{'n' * 200}{number}").mkdir(parents=True)
        (home / f"{'n' * 200}{number}" / "model.safetensors").touch()
    assert len(refusal(home)) <= 250 and refusal(home).endswith("or one of them.")
    (home / "__0_0.distcp").touch()
    assert len(refusal(home)) <= 250 and "dcp_to_torch hhhh" in refusal(home)
    for number in range(4):
        (home / f"{'w' * 200}{number}.pt").touch()
    assert len(refusal(home)) <= 250 and refusal(home).endswith("Keep one.")


def test_part_that_a_saved_checkpoint_lacks_is_refused(saved: Path) -> None:
    for part in ("nobody", "\0"):
        assert "holds no model that is called" in refusal(saved.with_name(f"{saved.name}#{part}"))


def test_a_folder_of_checkpoints_names_those_that_it_holds(tmp_path: Path) -> None:
    for step in (500, 1000):
        keep(plain(), tmp_path / "out" / f"checkpoint-{step}" / "pytorch_model.bin")
    assert "checkpoint-1000, checkpoint-500. Open" in refusal(tmp_path / "out")


def packed(name: str, open_archive: Any, write: Any) -> bytes:
    buffer = io.BytesIO()
    with open_archive(buffer) as archive:
        write(archive, name)
    return buffer.getvalue()


OTHERS = {
    "a web page": b"<!DOCTYPE html><html>Sign in</html>",
    "a GGUF file": b"GGUF\3\0\0\0" + bytes(100),
    "an HDF5 file": b"\x89HDF\r\n\x1a\n" + bytes(100),
    "an ONNX program": b"\x08\x08\x12\x07pytorch" + bytes(100),
    "a SavedModel of TensorFlow": b"\x08\x01\x12\x83\x01" + bytes(100),
    "a pickle that torch.save did not write": pickle.dumps({"head.weight": torch.ones(2, 3)}),
    "a pickle that torch.save did not write, as": pickle.dumps([np.ones(3)], protocol=2),
    "a model of Keras, which is not read here. Open": packed(
        "metadata.json", lambda buffer: zipfile.ZipFile(buffer, "w"), lambda archive, name: archive.writestr(name, b"")
    ),
    "a TensorFlow Lite": b"\x1c\0\0\0TFL3" + bytes(100),
    "a file of Flax": b"\x82\xa6params" + bytes(100),
    "an archive. Unpack": packed(
        "model.pth", lambda buffer: zipfile.ZipFile(buffer, "w"), lambda archive, name: archive.writestr(name, b"")
    ),
    "an archive. Unpack it": packed(
        "model.pth",
        lambda buffer: tarfile.TarFile(fileobj=buffer, mode="w"),
        lambda archive, name: archive.addfile(tarfile.TarInfo(name)),
    ),
    "a program of torch.export": packed(
        "m/data/weights/weight_0",
        lambda buffer: zipfile.ZipFile(buffer, "w"),
        lambda archive, name: archive.writestr(name, b""),
    ),
}


def test_what_is_taken_for_weights_is_called_what_it_is(tmp_path: Path) -> None:
    for what, content in OTHERS.items():
        path = tmp_path / "best.pth"
        path.write_bytes(content)
        assert f"best.pth is {what}" in refusal(path)


def test_numbers_of_few_bits_are_refused_as_such(tmp_path: Path) -> None:
    tensors = plain()
    eight = {name: tensor.to(torch.float8_e4m3fn) if tensor.ndim == 2 else tensor for name, tensor in tensors.items()}
    assert "stored as float8_e4m3fn" in refusal(keep(eight, tmp_path / "eight.pth"))
    for name in ("blocks.0.mlp.fc1.SCB", "blocks.0.mlp.fc1.zero_point", "blocks.0.attn.qkv.qweight"):
        path = keep(tensors | {name: torch.ones(4)}, tmp_path / "quantised.pth")
        assert f"quantised (`{name}`)" in refusal(path)


def test_impossible_shapes_raise_nothing_else_and_patches_of_videos_are_named(tmp_path: Path) -> None:
    with torch.device("meta"):
        clip = transformers.CLIPVisionModelWithProjection(
            transformers.CLIPVisionConfig(hidden_size=192, num_hidden_layers=1, image_size=32, patch_size=8)
        )
        odd = [torch.empty(shape) for shape in ((), (0,), (5,), (5, 0), (2, 3, 8), (0, 0, 0, 0), (192, 3, 2, 8, 8))]
    for tensors in (plain(), {f"backbone.{name}": tensor for name, tensor in plain().items()}, clip.state_dict()):
        for name in [name for name in tensors if "patch_embed" in name or "head" in name or "projection" in name]:
            for tensor in odd:
                with suppress(InvalidCheckpoint):  # some are left out, as a head that is none
                    recognition.read(tensors | {name: tensor, "fc.weight": odd[-1]}, heads=3)
    video = plain() | {"patch_embed.proj.weight": torch.ones(192, 3, 2, 8, 8)}
    assert "videos or volumes" in refusal(keep(video, tmp_path / "video.pth"))


def test_a_decoder_that_has_blocks_too_is_left_out(tmp_path: Path) -> None:
    model = plain()
    decoder = {name: tensor for name, tensor in model.items() if name.startswith("blocks.")}
    both = {f"encoder.{name}": tensor for name, tensor in model.items() if not name.startswith("head")}
    both |= {f"decoder.{name}": torch.zeros_like(tensor) for name, tensor in decoder.items()}
    checkpoint = load_checkpoint(keep({"model": both}, tmp_path / "segmenter.pth"))
    assert checkpoint.config.depth == 1 and "decoder" in checkpoint.assumed["left_out"]
    assert torch.equal(checkpoint.model.state_dict()["blocks.0.attn.proj.weight"], model["blocks.0.attn.proj.weight"])


@torch.inference_mode()
def test_the_backbone_of_a_model_for_depth_opens_by_its_own_config(tmp_path: Path) -> None:
    sizes = dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=3, image_size=28, patch_size=14)
    backbone = transformers.Dinov2Config(**sizes, out_features=["stage2"], reshape_hidden_states=False)
    config = transformers.DepthAnythingConfig(
        backbone_config=backbone, reassemble_hidden_size=48, neck_hidden_sizes=[8], reassemble_factors=[1]
    )
    model = fill(transformers.DepthAnythingForDepthEstimation(config))
    model.save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    images = torch.randn(1, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    model.backbone.set_attn_implementation("eager")
    expected = model.backbone(images, output_attentions=True).attentions
    found = checkpoint.model(images, output_attentions=True).attentions
    assert max(map(difference, found, expected)) < 1e-5
    document = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(document | {"backbone_config": {"model_type": "swin"}}))
    assert '"depth_anything" model of transformers with a "swin"' in refusal(tmp_path)
