"""Training in two processes, and the choice of a device."""

import socket
from pathlib import Path

import pytest
import subprocesses
import torch
from noise_runs import describe, figures

from vit.errors import InvalidConfig
from vit.training.loop.distributed import set_up_process
from vit.training.loop.presets import train_config
from vit.training.loop.train import train

pytestmark = pytest.mark.slow
TWO = """
import os, sys, torch
from pathlib import Path
from vit.training.loop.config import TrainConfig
from vit.training.loop.train import train
from vit.training.loop.trainer import Trainer
rank, port, config, run = sys.argv[1:]
os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
config, run = TrainConfig.model_validate_json(config), Path(run)
keep = Trainer.train
def train_and_keep(self, *arguments):
    result = keep(self, *arguments)
    torch.save(self.update.model.state_dict(), run.with_name(f"rank{self.process.rank}.pt"))
    return result
Trainer.train = train_and_keep
train(config, run)
names = [(thread / "comm").read_text() for thread in Path("/proc/self/task").glob("*")]
assert not [name for name in names if "gloo" in name], names  # one that outlives the group may abort the process
"""


@pytest.mark.exhaustive
def test_two_processes_agree_with_each_other_and_with_one(folder: Path, tmp_path: Path) -> None:
    plain = dict(dropout=0, drop_path=0, operations=0, erase=0, mixup=0, cutmix=0, crop_padding=0, flip=False)
    config = describe(folder, **plain, epochs=3, patience=2, precision="float32")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = tmp_path / "two"
    ranks = [
        subprocesses.begin(TWO, rank, port, config.model_dump_json(), run, out=tmp_path / f"{rank}.txt")
        for rank in (0, 1)
    ]
    for rank in ranks:
        rank.join(subprocesses.PATIENCE)
    assert [rank.exitcode for rank in ranks] == [0, 0]

    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    train(config, tmp_path / "one")
    losses = [[r["loss"] for r in figures(tmp_path / run) if r["kind"] == "step"] for run in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)


def test_missing_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidConfig, match="no CUDA GPU"):
        set_up_process(train_config(device="cuda"))


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:0"])
def test_gpu_is_selected_by_its_number(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """`torch.cuda.set_device` refuses a device without a number."""
    chosen: list[torch.device] = []
    for function, answer in {"is_available": True, "device_count": 1}.items():
        monkeypatch.setattr(torch.cuda, function, lambda answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    try:
        assert set_up_process(train_config(device=name)).device == torch.device("cuda:0")
    finally:
        torch.set_float32_matmul_precision("highest")
    assert [device.index for device in chosen] == [0]
