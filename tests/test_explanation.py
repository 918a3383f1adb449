"""Offered input sizes, their cost, and whether estimates hold."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from subprocesses import output_of

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.input_sizes import resized, size_near
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.errors import InvalidImage
from vit.explain.classes.examples import classes_from_pictures
from vit.explain.classes.similarity import class_from_picture
from vit.explain.record import Precision
from vit.images.encode import encode_image
from vit.images.files.decode import decode_image
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.cost import count_tokens
from vit.model.transformer import VisionTransformer
from vit.view import explanation as module
from vit.view.explanation import cost, expected_seconds, explain, sizes, with_predictions
from vit.view.payload import unpack


@pytest.fixture
def photo() -> bytes:
    return encode_image(Image.effect_noise((300, 200), 80).convert("RGB"))


def of_size(checkpoint: Checkpoint, side: int, patch: int, depth: int = 2) -> Checkpoint:
    """Return the checkpoint with a replaced config, for functions that compute from the config alone."""
    config = ViTConfig(
        **{"num_classes": 5, "dim": 64, "heads": 2, "mlp_dim": 128}
        | {"image_size": (side, side), "patch_size": patch, "depth": depth}
    )
    with torch.device("meta"):
        model = type(checkpoint.model)(config)
    return replace(checkpoint, model=model, config=config, preprocess=Preprocess(size=(side, side)))


def test_usual_sizes_are_offered_in_whole_patches(checkpoint: Checkpoint) -> None:
    assert sizes(of_size(checkpoint, 224, 16)) == [(s, s) for s in (224, 384, 512, 768, 1024)]
    assert sizes(of_size(checkpoint, 518, 14)) == [(s, s) for s in (518, 770, 1022)]
    assert sizes(of_size(checkpoint, 32, 4)) == [(s, s) for s in (32, 64, 128, 256)]


def test_size_that_exceeds_the_memory_is_not_offered(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = of_size(checkpoint, 224, 16), of_size(checkpoint, 224, 16, depth=48)
    monkeypatch.setattr(module, "memory", lambda: (2_000_000_000, 300_000_000))
    assert (1024, 1024) in sizes(small)
    assert (1024, 1024) not in sizes(large) and (224, 224) in sizes(large)


def test_too_large_input_is_refused_before_anything_is_computed(checkpoint: Checkpoint, photo: bytes) -> None:
    def never(*args: Any) -> None:
        raise AssertionError

    checkpoint.model.register_forward_pre_hook(never)
    with pytest.raises(InvalidImage, match="An input of 16,901 tokens is too large; 16,448 is the limit"):
        explain(checkpoint, photo, (1040, 1040))
    with pytest.raises(ValueError, match="whole patches of 8"):
        explain(checkpoint, photo, (100, 100))


@pytest.mark.parametrize("size", [(32, 32), (96, 64), (160, 160)])
def test_cost_states_tokens_and_bytes(checkpoint: Checkpoint, photo: bytes, size: tuple[int, int]) -> None:
    estimate, result = cost(checkpoint, size), explain(checkpoint, photo, size)
    assert result.record.tokens == estimate.tokens == count_tokens(checkpoint.config, size)
    header, sections = unpack(result.payload)
    assert header["grid"] == [size[0] // 8, size[1] // 8]
    picture = sections.pop("picture")
    attention = sum(s.nbytes for name, s in sections.items() if not name.startswith("colormap"))
    assert attention == pytest.approx(estimate.payload, rel=0.25)  # the scale of the colours is added
    assert len(result.payload) < 1.5 * estimate.payload + len(picture) + 20_000
    assert result.preprocess.size == size and result.input_image.size == size[::-1]


def test_time_estimate_grows_with_the_input(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    assert expected_seconds(checkpoint, (64, 64)) == 0, "a small pass is not timed"
    monkeypatch.setattr("vit.model.cost._rates", {})
    monkeypatch.setattr("vit.model.cost._timed", lambda model, pixels: 1.0)
    monkeypatch.setattr("vit.model.cost._TIMED_PRODUCTS", 1.0)
    monkeypatch.setattr(module, "_NOT_TIMED", 0)
    small, large = (expected_seconds(checkpoint, (side, side)) for side in (64, 128))
    assert 4 < large / small < 16, "between the number of tokens and its square"


MEMORY = """
import ctypes, gc, sys, torch
from pathlib import Path
from vit.view import explanation as module
from vit.images import samples
from vit.checkpoints import Checkpoint
from vit.images import Preprocess
from vit.model import VisionTransformer, ViTConfig

def now(field):
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) * 1024

size = (int(sys.argv[1]),) * 2
config = ViTConfig(image_size=(224, 224), patch_size=16, num_classes=5, dim=192, depth=12, heads=3, mlp_dim=768)
model = VisionTransformer(config).eval()
checkpoint = Checkpoint("tiny", Path(), model, config, tuple("abcde"), Preprocess(size=(224, 224)), {}, "", {}, "")
image = samples.read("cat")
module.explain(checkpoint, image)
told = module.cost(checkpoint, size)
gc.collect()
ctypes.CDLL(None).malloc_trim(0)  # or what is free and was not given back hides some of what is taken
Path("/proc/self/clear_refs").write_text("5")
before = now("VmRSS")
found = module.explain(checkpoint, image, size)
print(now("VmHWM") - before, told.memory, len(found.payload))
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_memory_stays_below_the_estimate_and_grows_with_the_tokens() -> None:
    """Runs in separate processes, to measure their peak memory, without the copies that the server makes."""
    estimates = {}
    for side in (512, 1024):
        used, estimate, payload = map(int, output_of(MEMORY, side).split())
        assert used < estimate
        assert estimate - module.COPIES * payload < 3 * used
        estimates[side] = estimate
    # Four times the tokens, and sixteen times the matrices. The estimates are compared, because the allocator decides
    # how much of the smaller peak is cached memory: 60 to 120 MB of the same program.
    assert estimates[1024] < 4 * estimates[512]


def test_another_size_crops_the_same_part_of_the_picture() -> None:
    own = Preprocess(size=(224, 224), resize_to=256)
    picture = Image.new("RGB", (900, 600))
    box, larger = own.geometry(picture).box, resized(own, (512, 512)).geometry(picture).box
    assert max(abs(a - b) for a, b in zip(box, larger, strict=True)) < 3
    assert resized(own, (224, 224)) == own


def test_sizes_keep_the_proportions_of_the_model(checkpoint: Checkpoint) -> None:
    wide = replace(checkpoint, preprocess=Preprocess(size=(32, 64)))
    assert size_near(wide, 100) == (96, 200)
    assert all(width == 2 * height for height, width in sizes(wide))


def test_fast_precision_is_stated_and_close(checkpoint: Checkpoint, photo: bytes) -> None:
    exact, fast = explain(checkpoint, photo), explain(checkpoint, photo, precision="bfloat16")
    assert fast.record.queries[0].dtype is torch.bfloat16 and exact.record.queries[0].dtype is torch.float32
    rows, expected = fast.record.rows(1, [0, 3]), exact.record.rows(1, [0, 3])
    torch.testing.assert_close(rows.sum(-1), torch.ones(2, 2))
    assert 0 < (rows - expected).abs().max() < 0.05
    again = explain(checkpoint, photo)
    assert torch.equal(again.record.logits, exact.record.logits)


OPENED_AND_TRAINED = """
import sys
from pathlib import Path
import vit
from vit.images import samples
from vit.view.explanation import explain
from vit.explain.methods import METHODS, weights
from vit.explain.recorded_pass import RecordedPass
from vit.training.loop.presets import train_config
from vit.training.loop.train import train

checkpoint = vit.load_checkpoint("cifar10")
picture = explain(checkpoint, samples.read("cat")).picture
recorded = RecordedPass.of_class(checkpoint.model, checkpoint.preprocess(picture), 3)
for method in METHODS:
    weights(recorded, method)
settings = dict(limit=40, epochs=1, dim=32, depth=1, heads=1, patch_size=16, ema=0.9, device="cpu")
train(train_config("shapes", **settings), Path(sys.argv[1]))
print(sorted({"torch._dynamo", "torchvision"} & sys.modules.keys()))
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_torchs_compiler_is_imported_only_for_compiling(tmp_path: Path) -> None:
    """The import takes 2 s, which would delay pages and runs."""
    command = [sys.executable, "-c", OPENED_AND_TRAINED, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("pool", ["cls", "mean", "all", "map", "map_patches", "cls_mean"])
def test_other_answers_use_the_same_pass(
    tmp_path: Path, build: Callable[..., VisionTransformer], photo: bytes, pool: str, precision: Precision
) -> None:
    model = build(pool=pool, prefix=("cls",))
    checkpoint = load_checkpoint(
        save_checkpoint(tmp_path / pool, model, ["a", "b", "c", "d", "e"], Preprocess((32, 32)))
    )
    picture = decode_image(photo)
    by_pictures = checkpoint.with_classes(classes_from_pictures(checkpoint, {"noise": [picture], "grey": [grey()]}))
    like_it = checkpoint.with_classes(class_from_picture(checkpoint, picture))
    assert by_pictures.body == checkpoint.body == like_it.body and by_pictures.identity != checkpoint.identity
    assert replace(checkpoint, preprocess=Preprocess((32, 32), mean=(0.1, 0.2, 0.3))).body != checkpoint.body
    whole = explain(like_it, photo, precision=precision)
    for one in (checkpoint, by_pictures, like_it):
        fresh, read = explain(one, photo, precision=precision), with_predictions(whole, one)
        assert torch.equal(read.record.logits, fresh.record.logits)
        assert (read.probabilities, read.predictions, read.payload) == (
            fresh.probabilities,
            fresh.predictions,
            fresh.payload,
        )


def grey() -> Image.Image:
    return Image.new("RGB", (40, 40), (128, 128, 128))
