"""Adapting to other classes: frozen parameters keep their bits, adapters merge, no run ends below its probe."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Command
from patience import until
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vit.checkpoints.load import load_checkpoint
from vit.cli.parser import parser
from vit.cli.training import merged_settings
from vit.errors import InvalidConfig
from vit.images.preprocess import Normalise
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer
from vit.training.loop import ladder, probe
from vit.training.loop.adaptation import adapt_, merged
from vit.training.loop.config import TrainConfig
from vit.training.loop.distributed import set_up_process
from vit.training.loop.evaluation import evaluate_checkpoint
from vit.training.loop.metrics import read_metrics
from vit.training.loop.optimizers import make_optimizers
from vit.training.loop.presets import train_config
from vit.training.loop.train import train
from vit.training.loop.trainer import Trainer

pytestmark = pytest.mark.slow

TRAINED = ("lora", "last", "all")
COLOURS = {"red": (136, 122, 122), "green": (122, 136, 122), "blue": (122, 122, 136)}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A briefly trained checkpoint of another task."""
    run = tmp_path_factory.mktemp("base") / "run"
    sizes = dict(image_size=16, patch_size=4, dim=24, heads=2, depth=3, mlp_dim=48, batch_size=50)
    train(train_config("shapes", **sizes, epochs=1, limit=400, device="cpu"), run)
    return str(run / "checkpoints" / "best")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 pictures of each of three colours, with much noise and larger than the input."""
    root, random = tmp_path_factory.mktemp("colours"), np.random.default_rng(1)
    for split, count in (("train", 24), ("val", 8), ("test", 8)):
        for name, colour in COLOURS.items():
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.normal(colour, 90, (32, 40, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")
    return root


@pytest.fixture
def config(base: str, folder: Path) -> TrainConfig:
    return train_config(
        data=f"folder:{folder}", init_from=base, epochs=3, batch_size=12, crop_scale=0.5, flip=True, ema=0.9,
        drop_path=0.1, seed=3, device="cpu", precision="float32",
    )  # fmt: skip


@pytest.fixture
def runs(tmp_path: Path) -> Callable[[TrainConfig], Path]:
    """Train a run, and return its folder."""
    count = iter(range(100))

    def train_run(config: TrainConfig) -> Path:
        run = tmp_path / f"run{next(count)}"
        train(config, run)
        return run

    return train_run


def epochs(run: Path) -> dict[int, float]:
    """Return the validation accuracy after each epoch."""
    return {
        record["epoch"]: record["accuracy"]
        for record in read_metrics(run / "metrics.jsonl")
        if record["kind"] == "validation"
    }


# --- Trainable parameters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rung", "learns"),
    [
        ("probe", ("head",)),
        ("lora", ("head", "qkv.weight", "proj.weight")),
        ("last", ("head", "norm.weight", "norm.bias", "blocks.1.", "blocks.2.")),
    ],
)
def test_frozen_parameters_keep_their_bits(
    rung: str, learns: tuple[str, ...], config: TrainConfig, base: str, runs: Callable[[TrainConfig], Path]
) -> None:
    before = load_checkpoint(base).model.state_dict()
    after = load_checkpoint(runs(ladder.rung_config(config, rung)) / "checkpoints" / "last").model.state_dict()
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    allowed = {name for name in before if any(part in name for part in learns) or name.startswith("head")}
    assert changed <= {name for name in allowed if name.startswith(("blocks", "norm.", "head"))}
    assert any(name.startswith("head") for name in changed)
    if rung != "probe":
        assert any(name.startswith("blocks.2.attn") for name in changed)


def test_evaluation_before_the_first_step_forecasts_nothing(
    config: TrainConfig, runs: Callable[[TrainConfig], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    runs(ladder.rung_config(config, "lora"))
    before, after, *_ = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Epoch ")]
    assert before.startswith("Epoch 0 of 3: validation accuracy ") and "left" not in before
    assert after.startswith("Epoch 1 of 3: loss ") and after.endswith(" left")


def test_merged_adapters_compute_the_same_as_separate_ones(config: TrainConfig) -> None:
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig(image_size=(16, 16), patch_size=4, num_classes=3, dim=24, heads=2, depth=2))
    adapt_(model, config.model_copy(update={"lora_rank": 4}))
    for name, parameter in model.named_parameters():
        if name.endswith((".up", "head.weight")):
            torch.nn.init.normal_(parameter, std=0.1)
    model.eval()
    plain, pixels = merged(model), torch.randn(5, 3, 16, 16)
    with torch.no_grad():
        kept, whole = model(pixels, output_attentions=True), plain(pixels, output_attentions=True)
        assert torch.allclose(kept.logits, whole.logits, atol=1e-6)
        for one, other in zip(kept.attentions, whole.attentions, strict=True):
            assert torch.allclose(one, other, atol=1e-6)
        assert (model(pixels).logits - VisionTransformer(model.config).eval()(pixels).logits).abs().max() > 1e-3
    assert list(plain.state_dict()) == list(VisionTransformer(model.config).state_dict())  # loaded like any checkpoint


def test_saved_model_has_the_accuracy_that_the_run_reports(
    config: TrainConfig, folder: Path, runs: Callable[[TrainConfig], Path]
) -> None:
    run = runs(ladder.rung_config(config, "lora"))
    (test,) = [record for record in read_metrics(run / "metrics.jsonl") if record["kind"] == "test"]
    said = evaluate_checkpoint(load_checkpoint(run / "checkpoints" / "best"), f"folder:{folder}")
    assert (test["accuracy"], test["loss"]) == pytest.approx((said.accuracy, said.loss), abs=1e-6)


def test_lower_blocks_learn_more_slowly(config: TrainConfig) -> None:
    model = VisionTransformer(ViTConfig(image_size=(16, 16), patch_size=4, num_classes=3, dim=24, heads=2, depth=2))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    (adamw,) = make_optimizers(model, config.model_copy(update={"layer_decay": 0.5, "lr": 0.08}), torch.device("cpu"))
    rates = {names[id(p)]: group["lr"] for group in adamw.param_groups for p in group["params"]}
    assert len(rates) == len(names)
    assert rates["head.weight"] == rates["norm.weight"] == 0.08
    assert rates["blocks.1.attn.qkv.weight"] == rates["blocks.1.norm1.bias"] == 0.04
    assert rates["blocks.0.mlp.fc1.weight"] == 0.02
    assert rates["patch_embed.weight"] == rates["pos_embed"] == 0.01


def test_more_trainable_blocks_than_the_model_has_are_refused(config: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="has 3 blocks"):
        train(config.model_copy(update={"freeze": "last:4"}), tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"freeze": "backbone"}, "freeze is for runs that start from a checkpoint"),
        ({"lora_rank": 4}, "lora_rank is for runs that start from a checkpoint"),
        ({"init_from": "cifar10", "freeze": "last:2", "lora_rank": 4}, "Set only one of freeze and lora_rank"),
        ({"init_from": "cifar10", "freeze": "last:0"}, "freeze must be"),
        ({"init_from": "cifar10", "freeze": "first:1"}, "freeze must be"),
    ],
)
def test_contradictory_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        train_config(**settings)


# --- The probe ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 5])
def test_probe_equals_scikit_learns(classes: int) -> None:
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(0, classes, (300,), generator=random)
    features = 3 + torch.randn(300, 12, generator=random) * 2 + torch.randn(classes, 12, generator=random)[labels]
    features[:, 4] = 7  # a constant feature
    weight, bias = probe.fit(features, labels, classes, strength=1.0)
    strength = (
        2 if classes == 2 else 1
    )  # with two classes scikit-learn has one direction, which costs twice as much as our two
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=strength, tol=1e-8, max_iter=5000))
    theirs = pipeline.fit(features.double().numpy(), labels.numpy()).predict_proba(features.double().numpy())
    ours = (features @ weight.T + bias).softmax(1)
    assert np.abs(ours.numpy() - theirs).max() < 1e-3


@pytest.mark.parametrize("noise", [0.3, 3, 30])
def test_strength_equals_that_of_scikit_learns_grid_search(noise: float) -> None:
    """Scikit-learn's grid search uses other folds."""
    random = torch.Generator().manual_seed(2)
    labels = torch.arange(200) % 4
    features = torch.randn(4, 60, generator=random)[labels] + noise * torch.randn(200, 60, generator=random)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    search = GridSearchCV(pipeline, {"logisticregression__C": probe.STRENGTHS}, scoring="neg_log_loss", cv=5)
    theirs = search.fit(features.double().numpy(), labels.numpy()).best_params_["logisticregression__C"]
    assert probe.choose_strength(features, labels, 4) == theirs


def test_features_are_computed_once_for_all_rungs(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    there = Trainer(config, tmp_path / "there", set_up_process(config))
    adapted = Trainer(ladder.rung_config(config, "lora"), tmp_path / "adapted", set_up_process(config))
    order = torch.tensor([3, 0, 2])

    def features(trainer: Trainer, model: VisionTransformer, order: torch.Tensor = order) -> torch.Tensor:
        return probe.features_of(model, trainer.data.train, trainer.data.normalise, order, torch.device("cpu"))[0]

    first = features(there, there.update.model)
    assert torch.equal(features(there, there.update.model), first)
    stored = list((tmp_path / "runs" / ".features").rglob("*.npz"))
    assert len(stored) == 1
    np.savez(stored[0], features=first.numpy() + 1)  # so that each rung's reading shows
    assert torch.equal(features(there, there.update.model), first + 1)
    assert torch.allclose(features(there, there.update.model, order.flip(0)), first.flip(0), atol=1e-5)
    assert torch.equal(features(adapted, adapted.update.model), first + 1)  # untrained adapters
    stored[0].write_bytes(b"torn")
    assert torch.equal(features(there, there.update.model), first)
    with torch.no_grad():
        there.update.model.blocks[0].attn.qkv.weight[0, 0] += 1
    assert not torch.equal(features(there, there.update.model), first)


@pytest.mark.parametrize("rung", ["probe", *TRAINED])
def test_run_starts_with_the_accuracy_of_the_probe(
    rung: str, config: TrainConfig, runs: Callable[[TrainConfig], Path], tmp_path: Path
) -> None:
    there = Trainer(config, tmp_path / "there", set_up_process(config))
    reached = probe.without_training(there.update.model, there.data, there.process.device)
    begun = epochs(runs(ladder.rung_config(config, rung)))
    assert reached["probe"].pictures == 24
    assert begun[0] == pytest.approx(reached["probe"].accuracy)
    assert reached["probe"].accuracy > 0.6  # chance of three classes


@pytest.mark.parametrize("rung", TRAINED)
def test_too_high_a_learning_rate_does_not_end_below_the_probe(
    rung: str, config: TrainConfig, runs: Callable[[TrainConfig], Path]
) -> None:
    """As in facebookresearch/dinov2 #276, where the probe reaches 75% and fine-tuning never exceeds 40%."""
    run = runs(ladder.rung_config(config, rung).model_copy(update={"lr": 2.0, "ema": 0.0, "grad_clip": 0.0}))
    accuracy = epochs(run)
    assert min(accuracy.values()) < accuracy[0]
    best = load_checkpoint(run / "checkpoints" / "best")
    assert best.facts["validation_accuracy"] == pytest.approx(max(accuracy.values()), abs=1e-4)
    assert max(accuracy.values()) >= accuracy[0]


def test_head_of_the_same_classes_is_kept(config: TrainConfig, runs: Callable[[TrainConfig], Path]) -> None:
    first = runs(config.model_copy(update={"epochs": 1}))
    again = config.model_copy(update={"init_from": str(first / "checkpoints" / "last"), "probe_first": True})
    assert 0 not in epochs(runs(again.model_copy(update={"epochs": 1})))


# --- Runs like any other --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rung", ["probe", *(pytest.param(rung, marks=pytest.mark.exhaustive) for rung in TRAINED)])
def test_stopped_and_resumed_run_ends_with_the_same_bits(
    rung: str,
    config: TrainConfig,
    runs: Callable[[TrainConfig], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = ladder.rung_config(config, rung)
    whole, parts = runs(config), tmp_path / "parts"
    monkeypatch.setattr(Trainer, "_stop_requested", lambda *_: True)  # called after each step
    train(config, parts)
    attempts = 1
    while '"finished"' not in (parts / "outcome.json").read_text():
        train(config, parts, resume=True)
        attempts += 1
    assert attempts == config.epochs * 6  # steps per attempt
    for name in ("best", "last"):
        one, other = ((run / "checkpoints" / name / "model.safetensors").read_bytes() for run in (whole, parts))
        assert one == other


def test_training_pictures_are_stored_larger_for_random_crops(config: TrainConfig, tmp_path: Path) -> None:
    trainer = Trainer(config, tmp_path / "run", set_up_process(config))
    assert trainer.data.train.images.shape[2:] == (20, 20)  # type: ignore[attr-defined]
    assert trainer.data.validation.images.shape[2:] == (16, 16)  # type: ignore[attr-defined]
    whole = Trainer(config.model_copy(update={"crop_scale": 1.0}), tmp_path / "run", set_up_process(config))
    assert whole.data.train.images.shape[2:] == (16, 16)  # type: ignore[attr-defined]
    seen: list[torch.Size] = []
    normalise = Normalise.__call__

    def watch(self: Normalise, images: torch.Tensor) -> torch.Tensor:
        seen.append(images.shape)
        return normalise(self, images)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Normalise, "__call__", watch)
        trainer.update.train_step(0, trainer.data.train.images[:6], trainer.data.train.labels[:6], print)  # type: ignore[attr-defined]
    assert seen == [(6, 3, 16, 16)]


def test_ladder_prints_the_command_of_what_it_measured(
    base: str, folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ladder, "recommended", lambda _: "probe")
    few = ["batch_size=12", "limit=40", "device=cpu"]
    data = f"folder:{folder.parent / 'my pictures'}"
    (folder.parent / "my pictures").symlink_to(folder)
    result = command("ladder", "--from", base, "--data", data, "--rungs", "neighbours", "probe", "--set", *few)
    assert result.status == 0, result.err
    options = parser().parse_args(shlex.split(result.out.splitlines()[-1])[3:])
    chosen = train_config(options.preset, **merged_settings(options))
    assert (chosen.data, chosen.init_from, chosen.freeze, chosen.limit) == (data, base, "backbone", 40)


def test_stopped_ladder_starts_no_further_rung(base: str, folder: Path, tmp_path: Path) -> None:
    ladder_command = [sys.executable, "-m", "vit", "ladder", "--from", base, "--data", f"folder:{folder}"]
    settings = ["--rungs", "lora", "last", "--set", "epochs=1000", "batch_size=12", "device=cpu"]
    environment = os.environ | {"VIT_RUNS": str(tmp_path)}
    process = subprocess.Popen([*ladder_command, *settings], env=environment, stderr=subprocess.PIPE, text=True)
    until(lambda: list(tmp_path.glob("*/checkpoints/last")) or process.poll() is not None, "the first checkpoint")
    process.terminate()
    error = process.communicate()[1]
    (run,) = tmp_path.glob("2*")
    assert process.returncode == 130 and f"Stopped. Continue this run with: python -m vit train --resume {run}" in error
