"""Learning rate, optimizers, and averaged weights."""

import pytest
import torch
from torch import nn

from vit.model.transformer import VisionTransformer
from vit.training.loop import optimizers
from vit.training.loop.optimizers import Muon, average_, make_optimizers
from vit.training.loop.presets import train_config
from vit.training.loop.schedule import learning_rate_factor


@pytest.mark.parametrize(
    ("step", "share"), [(0, 0.25), (1, 0.5), (3, 1.0), (4, 1.0), (6, 0.853553), (8, 0.5), (10, 0.146447)]
)
def test_learning_rate_warms_up_and_follows_a_cosine(step: int, share: float) -> None:
    config = train_config(warmup_epochs=2, epochs=6)  # 2 steps per epoch: 4 of warm-up, 8 of cosine
    assert learning_rate_factor(step, 12, 2, config) == pytest.approx(share, abs=1e-6)


def test_constant_schedule_stays_at_the_peak() -> None:
    config = train_config(schedule="constant", warmup_epochs=1)
    assert [learning_rate_factor(step, 10, 2, config) for step in (0, 1, 2, 9)] == [0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("warmup", [0, 0.3, 1.25, 2.5, 100])
def test_learning_rate_is_positive_and_at_most_its_peak(warmup: float) -> None:
    config = train_config(warmup_epochs=warmup, epochs=4)
    shares = [learning_rate_factor(step, 8, 2, config) for step in range(8)]
    assert all(0 < share <= 1 for share in shares)
    assert max(shares) == 1


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("layer_scale", [None, 0.1])
def test_optimizers_cover_every_parameter_once_and_only_decay_matrices(
    optimizer: str, layer_scale: float | None
) -> None:
    config = train_config("shapes", optimizer=optimizer, layer_scale=layer_scale, registers=2)
    model = VisionTransformer(config.vit_config(4))
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = [g for o in make_optimizers(model, config, torch.device("cpu")) for g in o.param_groups]
    covered = [names[parameter] for group in groups for parameter in group["params"]]
    assert sorted(covered) == sorted(names.values())
    decayed = {names[parameter] for group in groups if group["weight_decay"] for parameter in group["params"]}
    products = {f"{name}.weight" for name, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    assert decayed == products


def test_muon_updates_the_matrices_of_the_blocks_and_no_others() -> None:
    config = train_config("shapes", optimizer="muon")
    model = VisionTransformer(config.vit_config(4))
    muon = make_optimizers(model, config, torch.device("cpu"))[1]
    assert isinstance(muon, Muon)
    assert len(muon.param_groups[0]["params"]) == 4 * config.vit_config(4).depth


def _stepped(optimizer: type[torch.optim.Optimizer]) -> list[nn.Parameter]:
    """Return matrices of several shapes after three steps."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((48, 16), (16, 16), (48, 16), (16, 48), (16, 16))
    matrices = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    muon = optimizer(matrices, lr=0.02, weight_decay=0.05)  # type: ignore[call-arg]
    for _ in range(3):
        for matrix in matrices:
            matrix.grad = torch.randn(matrix.shape, generator=generator)
        muon.step()
    return matrices


@pytest.mark.parametrize(("bfloat16", "apart"), [(True, 0.0), (False, 2e-3)])
def test_muon_updates_matrices_as_torch_does(monkeypatch: pytest.MonkeyPatch, bfloat16: bool, apart: float) -> None:
    monkeypatch.setattr(optimizers, "has_bfloat16", lambda: bfloat16)
    expected, result = _stepped(torch.optim.Muon), _stepped(Muon)
    with torch.no_grad():
        assert max(float((one - other).abs().max()) for one, other in zip(expected, result, strict=True)) <= apart


def test_decay_of_the_average_warms_up() -> None:
    model, averaged = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.zeros_(averaged.weight)
    left = []
    for step in range(3):  # share of the start: 1/10, of that 2/11, of that 3/12
        average_(averaged, model, step, most=0.9998)  # type: ignore[arg-type]
        left.append(1 - averaged.weight.item())
    assert left == pytest.approx([0.1, 0.2 / 11, 0.6 / 132])
    torch.nn.init.zeros_(averaged.weight)
    average_(averaged, model, 10**6, most=0.9)  # type: ignore[arg-type]
    assert averaged.weight.item() == pytest.approx(0.1)
