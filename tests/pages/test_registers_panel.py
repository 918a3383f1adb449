"""Panel Layers: test-time registers, on a model with planted outlier tokens and on one without."""

from pathlib import Path

import pytest
import torch
from planted_registers import PLANTED, plant
from streamlit.testing.v1 import AppTest
from tiny import TINY, fill

import vit
from tests.pages.controls import run, texts
from tests.pages.offered import sent_to
from vit.explain.registers import with_register
from vit.images import samples
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer


@pytest.fixture
def planted(checkpoints: Path) -> str:
    """A checkpoint with neurons that write great norms into patches of the cat."""
    torch.manual_seed(0)
    model = fill(VisionTransformer(ViTConfig(**TINY | {"depth": 3})))
    preprocess = Preprocess(model.config.image_size)
    plant(model, preprocess(vit.decode_image(samples.read("cat"))))
    labels = [f"kind {i}" for i in range(model.config.num_classes)]
    vit.save_checkpoint(checkpoints / "planted", model, labels, preprocess)
    return "planted"


def test_outlier_tokens_are_moved_to_a_register(page: AppTest, planted: str) -> None:
    run(page, checkpoint=planted, sample="cat", panel="layers")
    assert "With the register" not in texts(page, "caption")
    assert not run(page, register="1").error
    block, neuron = PLANTED[0]
    assert f"block {block + 1} neuron {neuron + 1}" in texts(page, "caption") and "With the register" in texts(
        page, "caption"
    )
    assert "Artefacts: " in texts(page, "caption") and "with the register 0.0%." in texts(page, "caption")
    assert "On this picture 0.0%" not in texts(page, "caption")
    assert sent_to(page, "register viewer")["group"] == sent_to(page)["group"]
    checkpoint = vit.load_checkpoint(planted)
    pixels = checkpoint.preprocess(vit.decode_image(samples.read("cat")))
    assert with_register(checkpoint.model, PLANTED)(pixels).logits.shape == checkpoint.model(pixels).logits.shape


def test_no_offer_without_outlier_tokens(page: AppTest) -> None:
    run(page, sample="cat", size="32", panel="layers", register="1")
    assert "With the register" not in texts(page, "caption")
    assert "so a register has nothing to take over" in texts(page, "caption")
