"""Conversion to ONNX."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from tiny import LABELS, fill

from vit.checkpoints.convert import convert, obstacle
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer

pytestmark = pytest.mark.slow


@torch.inference_mode()
@pytest.mark.parametrize(
    "name", ["registers and LayerScale", pytest.param("SigLIP with classes", marks=pytest.mark.exhaustive)]
)
def test_onnx_gives_logits_and_attention_for_any_batch_size(made: Any, tmp_path: Path, name: str) -> None:
    checkpoint = made(name)
    path = convert(checkpoint, tmp_path / "theirs.onnx", "onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    assert names[:3] == ["logits", "attention_0", "attention_1"]
    largest = 0.0
    for count in (1, 5):
        images = torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(count))
        result = dict(zip(names, session.run(None, {"images": images.numpy()}), strict=True))
        reference = checkpoint.model(images, output_attentions=True)
        expected = {"logits": reference.logits} | {
            f"attention_{i}": each for i, each in enumerate(reference.attentions)
        }
        if reference.pool_attention is not None:
            expected["pool_attention"] = reference.pool_attention
        assert set(expected) == set(result)
        for key, tensor in expected.items():
            assert result[key].shape == tensor.shape
            largest = max(largest, float(np.abs(result[key] - tensor.numpy()).max()))
    print(f"ONNX, {name}: largest difference {largest:.1e}")
    assert largest <= 1e-4
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["labels"]) == list(LABELS)
    assert (metadata["converted_from"].split()[-1], metadata["converted_from_identity"]) == (
        checkpoint.hash, checkpoint.identity,
    )  # fmt: skip
    assert Preprocess.from_config(json.loads(metadata["preprocess"])) == checkpoint.preprocess
    assert ViTConfig.from_dict(json.loads(metadata["vit.config"])) == checkpoint.config
    other = fill(VisionTransformer(replace(checkpoint.config, heads=4)))  # negative control
    other.load_state_dict(checkpoint.model.state_dict())
    assert np.abs(result["logits"] - other(images).logits.numpy()).max() > 1e-2


def test_missing_onnx_is_one_sentence_with_the_install_command(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vit.checkpoints.onnx_export.find_spec", lambda name: None)
    expected = "To write ONNX files, onnx and onnxscript must be installed: pip install onnx onnxscript."
    assert obstacle(made("plain"), "onnx") == expected
