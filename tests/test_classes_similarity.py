"""Similarity to a picture or a patch as the class: compared with cosines computed from separate passes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

import vit
from vit.errors import UserError
from vit.explain.methods import METHODS
from vit.images import samples


def picture(name: str) -> Image.Image:
    return vit.decode_image(samples.read(name))


def features_read_by_the_head(checkpoint: vit.Checkpoint, pixels: Tensor) -> Tensor:
    """Return the features that a plain pass hands to the head: float64 (D,)."""
    read: list[Tensor] = []
    handle = checkpoint.model.head.register_forward_hook(lambda _, inputs, __: read.append(inputs[0]))
    with torch.inference_mode():
        checkpoint.model(pixels)
    handle.remove()
    return read[0][0].double()


@pytest.fixture
def opened(tmp_path: Path, build: Any, preprocess: Any, request: pytest.FixtureRequest) -> vit.Checkpoint:
    """A random model with the test's pool."""
    model = build(**getattr(request, "param", {}))
    vit.save_checkpoint(tmp_path / "one", model, [f"{i}" for i in range(model.config.num_classes)], preprocess)
    return vit.load_checkpoint(tmp_path / "one")


@pytest.mark.parametrize(
    "opened", [{"pool": pool, "norm": norm} for pool in ("cls", "mean") for norm in ("before_pool", "after_pool")]
    + [{"pool": "map"}, {"num_classes": 0}], indirect=True
)  # fmt: skip
def test_the_logit_is_the_cosine_of_two_plain_passes(opened: vit.Checkpoint) -> None:
    cat, horse = (opened.preprocess(picture(name)) for name in ("cat", "horse"))
    alike = opened.with_classes(vit.class_from_picture(opened, picture("cat")))
    one, other = (features_read_by_the_head(opened, pixels) for pixels in (cat, horse))
    expected = float(one @ other / one.norm() / other.norm())
    with torch.inference_mode():
        assert float(alike.model(cat).logits[0, 0]) == pytest.approx(1, abs=1e-5)
        assert float(alike.model(horse).logits[0, 0]) == pytest.approx(expected, abs=1e-5)
        assert float(alike.model.probabilities(torch.tensor([[-0.5]]))) == 0
    assert alike.labels == ("like the picture",)


@pytest.mark.parametrize("opened", [{"pool": "cls"}, {"pool": "mean"}], indirect=True)
def test_patch_is_compared_by_its_own_token(opened: vit.Checkpoint) -> None:
    pixels = opened.preprocess(picture("cat"))
    alike = opened.with_classes(vit.class_from_picture(opened, picture("cat"), (2, 1)))
    with torch.inference_mode():
        tokens = opened.model(pixels, output_queries_keys=True).tokens[0].double()
        logit = float(alike.model(pixels).logits[0, 0])
    row, col = 2, 1
    token = tokens[len(opened.config.prefix) + row * 4 + col]
    whole = features_read_by_the_head(opened, pixels)
    assert logit == pytest.approx(float(token @ whole / token.norm() / whole.norm()), abs=1e-5)


def test_other_patches_and_pictures_are_other_checkpoints(opened: vit.Checkpoint) -> None:
    custom = [
        vit.class_from_picture(opened, picture(name), patch)
        for name, patch in (("cat", None), ("cat", (0, 0)), ("cat", (0, 1)), ("horse", None))
    ]
    assert len({opened.with_classes(one).identity for one in custom} | {opened.identity}) == 5
    again = vit.class_from_picture(opened, picture("cat"), (0, 1))
    assert opened.with_classes(again).identity == opened.with_classes(custom[2]).identity


@pytest.mark.parametrize("method", [name for name, one in METHODS.items() if one.of_class])
def test_every_class_method_explains_similarity(opened: vit.Checkpoint, method: str) -> None:
    alike = opened.with_classes(vit.class_from_picture(opened, picture("horse")))
    heatmap = vit.heatmap(alike, picture("cat"), method, 0)
    assert heatmap.shape == (4, 4) and bool(heatmap.isfinite().all())


def test_a_larger_input_has_more_patches(opened: vit.Checkpoint) -> None:
    with pytest.raises(UserError, match=r"rows 0 to 3 and columns 0 to 3, not 5,0"):
        vit.class_from_picture(opened, picture("cat"), (5, 0))
    custom = vit.class_from_picture(opened, picture("cat"), (5, 0), size=(64, 64))
    assert custom.names == ("like patch 5,0",)


def test_similarity_of_a_picture_to_itself_has_a_map(opened: vit.Checkpoint) -> None:
    """The gradient of a plain cosine would be zero there, and its map rounding noise."""
    image = picture("cat")
    pixels = opened.preprocess(image)
    alike = opened.with_classes(vit.class_from_picture(opened, image)).model
    pixels.requires_grad_()
    (gradient,) = torch.autograd.grad(alike(pixels).logits[0, 0], pixels)
    read: list[Tensor] = []
    opened.model.head.register_forward_hook(lambda _, inputs, __: read.append(inputs[0]))
    opened.model(pixels)
    length = read[0].norm()
    (expected,) = torch.autograd.grad((read[0] @ (read[0] / length).detach().T)[0, 0] / length.detach(), pixels)
    assert float(gradient.norm()) > 1e-3
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-6)
