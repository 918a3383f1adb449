"""Training from a checkpoint: its blocks are kept, its sizes are binding, and it is loaded only when it is needed."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from noise_runs import figures

import vit
from vit.checkpoints.load import load_checkpoint
from vit.errors import InvalidConfig
from vit.training.loop import fine_tuning, trainer
from vit.training.loop.config import TrainConfig
from vit.training.loop.fine_tuning import resolve
from vit.training.loop.presets import train_config
from vit.training.loop.train import train

pytestmark = pytest.mark.slow


def test_fine_tuning_starts_from_the_named_checkpoint(whole: Path, folder: Path, tmp_path: Path) -> None:
    best = whole / "checkpoints" / "best"
    before = vit.load_checkpoint(best)
    same = train_config(data=f"folder:{folder}", init_from=str(best), epochs=1, lr=1e-12, batch_size=8, device="cpu")
    result = train(same, tmp_path / "same")
    assert result.validation is not None and result.test is not None
    assert result.validation.accuracy == before.facts["validation_accuracy"]  # nothing was learnt or lost
    assert result.test.accuracy == before.facts["accuracy"]
    after = vit.load_checkpoint(tmp_path / "same" / "checkpoints" / "last")
    assert after.preprocess == before.preprocess
    assert after.facts["started_from"] == "whole"  # the run; its checkpoint is always "best"


def test_fine_tuning_on_other_classes_and_a_larger_input_keeps_the_blocks(whole: Path, tmp_path: Path) -> None:
    best = whole / "checkpoints" / "best"
    config = train_config(
        data="shapes", init_from=str(best), image_size=32, epochs=1, lr=1e-12, limit=50, batch_size=50, device="cpu"
    )
    train(config, tmp_path / "shapes")
    before, after = vit.load_checkpoint(best), vit.load_checkpoint(tmp_path / "shapes" / "checkpoints" / "last")
    assert after.labels == ("circle", "square", "triangle", "cross")
    assert after.config.grid == (8, 8) and before.config.grid == (4, 4)
    name = "blocks.1.mlp.fc1.weight"
    assert torch.allclose(before.model.state_dict()[name], after.model.state_dict()[name], atol=1e-6)
    assert after.model.state_dict()["head.weight"].abs().max() < 1e-6


@pytest.mark.parametrize("setting", [{"dim": 99}, {"registers": 3}, {"depth": 1}])
def test_fine_tuning_refuses_another_model_size(whole: Path, tmp_path: Path, setting: dict[str, int]) -> None:
    config = train_config(init_from=str(whole / "checkpoints" / "best"), **setting)
    with pytest.raises(InvalidConfig, match="which this run starts from"):
        resolve(config)
    with pytest.raises(InvalidConfig, match="which this run starts from"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_padding_is_validated_against_the_input_of_the_checkpoint(whole: Path) -> None:
    best = str(whole / "checkpoints" / "best")
    with pytest.raises(InvalidConfig, match="more than half of the input of 16 px"):
        resolve(train_config(init_from=best, crop_padding=9))
    with pytest.raises(InvalidConfig, match="more than half of the input of 32 px"):
        train_config(init_from=best, image_size=32, crop_padding=17)  # known without the checkpoint
    assert resolve(train_config(init_from=best, image_size=32, crop_padding=9)).base


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record which base checkpoints are loaded, starting with an empty cache."""
    opened: list[str] = []

    def counted(name: str) -> Any:
        opened.append(Path(name).name)
        return load_checkpoint(name)

    fine_tuning._open_base.cache_clear()
    for module in (fine_tuning, trainer):
        monkeypatch.setattr(module, "load_checkpoint", counted)
    return opened


def test_no_checkpoint_is_loaded_to_describe_a_run(loads: list[str], whole: Path) -> None:
    best = str(whole / "checkpoints" / "best")
    for lr in (1e-4, 1e-3):
        config = train_config("fine-tune", init_from=best, lr=lr)
        TrainConfig.model_validate_json(config.model_dump_json())
    train_config(init_from="nobody/has-this-model")
    assert loads == []
    for lr in (1e-4, 1e-3):
        resolve(train_config("fine-tune", init_from=best, lr=lr))
    assert loads == ["best"]


def test_another_checkpoint_of_the_same_name_is_loaded_again(loads: list[str], whole: Path, tmp_path: Path) -> None:
    base = shutil.copytree(whole / "checkpoints" / "best", tmp_path / "base")
    config = train_config(init_from=str(base))
    first = resolve(config).base
    shutil.rmtree(base)
    shutil.copytree(Path(vit.__file__).parents[1] / "checkpoints" / "cifar10", base)
    second = resolve(config).base
    assert first is not None and second is not None
    assert (first.model.dim, second.model.dim) == (24, 128)


def test_fine_tuned_run_resumes_after_its_base_was_deleted(
    loads: list[str], whole: Path, folder: Path, tmp_path: Path
) -> None:
    base = shutil.copytree(whole / "checkpoints" / "best", tmp_path / "base")
    config = train_config(data=f"folder:{folder}", init_from=str(base), epochs=1, batch_size=8, device="cpu")
    train(config, tmp_path / "run")
    longer = config.model_copy(update={"epochs": 2})
    train(longer, tmp_path / "whole")
    assert loads == ["base", "base", "best", "base", "best"]  # sizes once; the rest per run
    shutil.rmtree(base)
    fine_tuning._open_base.cache_clear()
    result = train(longer, tmp_path / "run", resume=True)
    assert result.test is not None
    assert [r["epoch"] for r in figures(tmp_path / "run") if r["kind"] == "validation"] == [1, 2]
