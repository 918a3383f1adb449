"""Run explanations and training on the device `pretend`, and print one JSON object per check.

    python -m tests.other_device.checks

A check compares its result with that of the CPU, or trains, and counts how often the host waits for the device.
Modules of `vit` are imported by the checks, after `device.set_up`, since it replaces functions of torch.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from . import device

torch = device.torch
CHECKS: dict[str, Callable[[], dict[str, Any]]] = {}


def check(compute: Callable[[], Any]) -> Callable[[], Any]:
    """Register a check."""
    CHECKS[compute.__name__] = compute
    return compute


def tiny_model(**changes: Any) -> Any:
    from tests.tiny import TINY, fill
    from vit.model.config import ViTConfig
    from vit.model.transformer import VisionTransformer

    return fill(VisionTransformer(ViTConfig(**TINY | changes)))


def noise(count: int = 1, seed: int = 1) -> Any:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def on_both(compute: Callable[[Any, Any], Any], count: int = 1, **changes: Any) -> dict[str, Any]:
    """Compute tensors from a model and pictures on both devices, and compare them."""
    expected = compute(tiny_model(**changes), noise(count))
    model, pixels = tiny_model(**changes).to("pretend"), noise(count).to("pretend")
    with device.count_waits() as waits:
        result = compute(model, pixels)
        counted = dict(waits)
    return {"difference": largest_difference(result, expected), "waits": sum(counted.values()), "where": counted}


def largest_difference(result: Any, expected: Any) -> float:
    from tests.tiny import difference

    if isinstance(expected, torch.Tensor):
        return difference(result.detach().cpu().float(), expected.detach().float())
    return max(largest_difference(one, other) for one, other in zip(result, expected, strict=True))


# --- The device itself --------------------------------------------------------------------------------------------


@check
def mistakes_are_noticed() -> dict[str, Any]:
    """The device refuses what a GPU refuses, accepts what it accepts, and counts waits."""
    here, there = torch.ones(3, device="pretend"), torch.ones(3)
    refused = []
    for mistake in (
        lambda: here + there,
        lambda: torch.where(there > 0, here, here),
        lambda: torch.rand(3, device="pretend", generator=torch.Generator()),
        lambda: torch.rand(3, generator=torch.Generator("pretend")),
    ):
        try:
            mistake()
        except RuntimeError as error:
            refused.append("device" in str(error))
    with device.count_waits() as waits:
        accepted = here + torch.tensor(2.0) + here[torch.tensor([0, 2, 1])]
        assert accepted.tolist() == [4.0, 4.0, 4.0] and bool((here > 0).all())
        counted = sum(waits.values())
    right = refused == [True] * 4 and counted == 2
    return {"difference": float(not right), "refused": refused, "counted": counted}


# --- Explanations -------------------------------------------------------------------------------------------------


@check
def forward_pass() -> dict[str, Any]:
    def compute(model: Any, pixels: Any) -> Any:
        output = model(pixels, output_attentions=True)
        return [output.logits, *output.attentions, model(pixels).logits]

    return on_both(compute, count=3)


@check
def forward_pass_of_pooled_models() -> dict[str, Any]:
    results = [on_both(lambda model, pixels: model(pixels).logits, count=2, pool=pool) for pool in ("mean", "map")]
    return {"difference": max(one["difference"] for one in results), "waits": sum(one["waits"] for one in results)}


@check
def forward_pass_at_another_size() -> dict[str, Any]:
    return on_both(lambda model, pixels: model(pixels[:, :, :24]).logits)


@check
def record() -> dict[str, Any]:
    from vit.explain.record import record as recorded

    def compute(model: Any, pixels: Any) -> Any:
        one = recorded(model, pixels)
        return [one.logits, *(one.full(block) for block in range(one.blocks))]

    return on_both(compute)


@check
def readings_of_a_record() -> dict[str, Any]:
    from vit.explain.record import record as recorded

    def compute(model: Any, pixels: Any) -> Any:
        one = recorded(model, pixels)
        found = [one.rows(0, [2, 5]), one.columns(1, [3]), one.log_sums(0), one.similarity(4), one.rollout(0)]
        return [*found, one.rollout(3, direction="to"), one.last_attention(), one.weights(2, 1, 0)]

    return on_both(compute)


@check
def relevance_and_legrad() -> dict[str, Any]:
    from vit.explain.relevance import legrad, relevance_record

    def compute(model: Any, pixels: Any) -> Any:
        one = relevance_record(model, pixels, 2)
        maps = [one.relevance(), one.relevance(3), one.gradient_rollout(), one.attention_gradient(), one.gradcam()]
        return [*maps, one.flow(1), legrad(model, pixels, 2)]

    return on_both(compute)


def maps_of_all_methods(model: Any, pixels: Any) -> Any:
    from vit.explain.methods import METHODS, weights
    from vit.explain.recorded_pass import RecordedPass

    recorded = RecordedPass.of_class(model, pixels, 1)
    return [weights(recorded, name).float() for name in METHODS]


@check
def every_method() -> dict[str, Any]:
    """Waits are those that eight heads need beyond those of two."""
    few, many = (on_both(maps_of_all_methods, heads=heads) for heads in (2, 8))
    return {"difference": many["difference"], "waits": many["waits"] - few["waits"]}


@check
def score_drops_under_masks() -> dict[str, Any]:
    from vit.explain.sensitivity import random_masks, removal_map, score_drops

    masks = random_masks(16, 24)
    return on_both(lambda model, pixels: [score_drops(model, pixels, 1, masks), removal_map(model, pixels, 1)])


@check
def faithfulness_of_a_map() -> dict[str, Any]:
    from vit.explain.faithfulness import deletion, faithfulness, insertion
    from vit.explain.record import record as recorded
    from vit.explain.sensitivity import faithfulness_verdict, random_masks, score_drops

    masks = random_masks(16, 24)

    def compute(model: Any, pixels: Any) -> Any:
        one = recorded(model, pixels)
        heatmap = one.heatmap(one.last_attention())
        verdict = faithfulness_verdict(heatmap, masks, score_drops(model, pixels, 1, masks))
        curves = [curve(model, pixels, 1, heatmap, 4)[1] for curve in (deletion, insertion)]
        return [torch.tensor(values) for values in (verdict, *curves, faithfulness(model, pixels, 1, [heatmap], 4))]

    return on_both(compute)


@check
def hidden_patches() -> dict[str, Any]:
    from vit.explain.occlusion import hide_patches, occlusion

    def compute(model: Any, pixels: Any) -> Any:
        hidden = [hide_patches(pixels, [1, 5], 8, baseline) for baseline in ("mean", "blur", "noise")]
        return [*hidden, occlusion(model, pixels)]

    return on_both(compute)


@check
def ablation_of_heads() -> dict[str, Any]:
    from vit.explain.head_ablation import ablation_hook, head_means, importance

    def compute(model: Any, pixels: Any) -> Any:
        means = head_means(model, pixels)
        changed = model(pixels, hook=ablation_hook([(0, 1)], means)).logits
        return [means, changed, importance(model, pixels[:1], 2), importance(model, pixels[:1], 2, means)]

    return on_both(compute, count=3)


@check
def statistics_of_heads() -> dict[str, Any]:
    from vit.explain.head_census import tally

    return on_both(lambda model, pixels: list(tally(model, pixels).means.values()), count=2)


@check
def components_of_features() -> dict[str, Any]:
    from vit.explain.components import components, patch_features, token_features

    def compute(model: Any, pixels: Any) -> Any:
        found = components([patch_features(model, one[None]) for one in pixels], foreground=True)
        return [token_features(model, pixels[:1]), *found.colours]

    return on_both(compute, count=2)


@check
def registers() -> dict[str, Any]:
    from vit.explain.registers import register_neurons, with_register

    def compute(model: Any, pixels: Any) -> Any:
        register_neurons(model, [pixels * 20])
        return with_register(model, [(0, 3), (1, 7)])(pixels).logits

    return on_both(compute)


@check
def features_and_matches() -> dict[str, Any]:
    from vit.explain.correspondence import matches
    from vit.explain.features import patch_features, pooled_features

    def compute(model: Any, pixels: Any) -> Any:
        vectors = patch_features(model, pixels)
        found = matches(vectors[:2], vectors[2:])
        return [pooled_features(model, pixels), vectors, *(one.float() for one in found)]

    return on_both(compute, count=2)


@check
def predictions_after_every_block() -> dict[str, Any]:
    from vit.explain.logit_lens import logit_lens
    from vit.explain.self_check import verify

    def compute(model: Any, pixels: Any) -> Any:
        verify(model, pixels)
        return [one for one in logit_lens(model, pixels, 1) if isinstance(one, torch.Tensor)]

    return on_both(compute)


@check
def classes_from_examples_and_text() -> dict[str, Any]:
    import numpy as np

    from vit.explain.classes.examples import classes_from_features
    from vit.explain.features import Features

    random = np.random.default_rng(0)
    vectors, labels = random.standard_normal((24, 64)).astype(np.float32), np.arange(24) % 3
    heads = [
        classes_from_features(Features(vectors, labels, ("a", "b", "c")), "noise", classifier).head
        for classifier in ("probe", "neighbours")
    ]
    tokens = torch.from_numpy(vectors[:2])
    expected = [head(tokens).detach() for head in heads]
    result = [head.to("pretend")(tokens.to("pretend")) for head in heads]
    return {"difference": largest_difference(result, expected), "waits": 0}


# --- Training -----------------------------------------------------------------------------------------------------


def train(config: Any, **more: Any) -> dict[str, Any]:
    """Train a short run with all that belongs to it, and count how often steps wait for the device."""
    from vit.training.distributed import Process
    from vit.training.trainer import Trainer

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(config, Path(folder), Process(torch.device("pretend:0"), autocast=False), **more)
        waits: list[dict[str, int]] = []
        step = trainer.update.train_step

        def counted_step(*arguments: Any) -> Any:
            with device.count_waits() as counted:
                result = step(*arguments)
                waits.append(dict(counted))
            return result

        trainer.update.train_step = counted_step  # type: ignore[method-assign]
        result, ending = trainer.train(0, threading.Event())
        notes = [record for record in (Path(folder) / "metrics.jsonl").read_text().splitlines() if '"note"' in record]
    where = {name: count for one in waits for name, count in one.items()}
    done = ending[0] == "finished" and result.test is not None
    count = sum(sum(one.values()) for one in waits)
    return {"finished": done, "notes": notes, "steps": len(waits), "waits": count, "where": where}


SMALL: dict[str, Any] = dict(
    data="shapes", image_size=16, patch_size=4, dim=24, depth=2, heads=2, mlp_dim=32, limit=80, batch_size=16,
    crop_padding=2, epochs=2, compile=False, precision="float32", workers=0, init_from="", layer_decay=1.0,
    device="cpu",
)  # fmt: skip


def train_preset(name: str) -> dict[str, Any]:
    """Train a small run with a preset's optimizer, augmentation and averaging."""
    from vit.training.presets import PRESETS, train_config

    with tempfile.TemporaryDirectory() as folder:
        data = few_pictures(Path(folder)) if PRESETS[name].settings["data"] == "mnist" else "shapes"
        return train(train_config(name, **SMALL | {"data": data}))


PRESET_NAMES = ("shapes", "cifar-cpu", "cifar", "tintn", "notebook", "mnist", "pictures", "photos", "photos-cpu")
CHECKS |= {f"preset {name}": partial(train_preset, name) for name in (*PRESET_NAMES, "fine-tune")}


def few_pictures(folder: Path) -> str:
    """Write pictures of two classes, and return them as a dataset."""
    from PIL import Image

    for split, count in (("train", 24), ("val", 4), ("test", 4)):
        for number, name in enumerate(("dark", "light")):
            (folder / split / name).mkdir(parents=True)
            for index in range(count):
                picture = Image.new("RGB", (20, 20), (120 * number + index, 20, 30))
                picture.save(folder / split / name / f"{index}.png")
    return f"folder:{folder}"


@check
def adapted_run_with_balanced_loss() -> dict[str, Any]:
    from tests.tiny import LABELS
    from vit.checkpoints.save import save_checkpoint
    from vit.images.preprocess import Preprocess
    from vit.training.presets import train_config

    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder) / "start"
        save_checkpoint(start, tiny_model(), LABELS, Preprocess((32, 32)))
        settings = SMALL | {"init_from": str(start), "image_size": 32, "lora_rank": 2, "balance": "loss", "ema": 0.9}
        for name in ("patch_size", "dim", "depth", "heads", "mlp_dim", "size"):
            settings.pop(name, None)
        return train(train_config(None, **settings))


@check
def streamed_pictures() -> dict[str, Any]:
    from unittest.mock import patch

    from vit.training.presets import train_config

    with tempfile.TemporaryDirectory() as folder, patch("vit.training.pictures.memory_budget", lambda _: 0):
        settings = SMALL | {"data": few_pictures(Path(folder)), "balance": "loss", "limit": None}
        return train(train_config(None, **settings))


def main() -> None:
    """Run all checks, or those named on the command line."""
    with device.set_up():
        torch.set_num_threads(1)
        for name, compute in CHECKS.items():
            if sys.argv[1:] and name not in sys.argv[1:]:
                continue
            try:
                with redirect_stdout(sys.stderr):
                    outcome = compute()
            except Exception:
                outcome = {"error": traceback.format_exc()}
            print(json.dumps({"check": name} | outcome), flush=True)


if __name__ == "__main__":
    main()
