"""Free capacity parsed from sinfo, which a stub program replaces; Slurm is not needed."""

from pathlib import Path

import pytest

from pages.training.train_form.compute_target import free_text
from vit.training.engines import watch
from vit.training.engines.clusters import Cluster
from vit.training.engines.contract import Capacity, Share
from vit.training.engines.slurm import Slurm


def answering(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> Slurm:
    """Return a cluster whose sinfo prints these lines: name, processors, GPUs, GPUs in use."""
    (folder / "answer").write_text("".join(f"{line}\n" for line in lines))
    program = folder / "sinfo"
    program.write_text(f"#!/bin/sh\ncat {folder}/answer\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return Slurm(Cluster(name="lab", kind="slurm", runs=folder))


def test_gpus_of_any_type_name_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = answering(
        tmp_path, monkeypatch,
        "n1|4/12/0/16|gpu:2080ti:8|gpu:2080ti:3(IDX:0-2)",
        "n2|0/8/0/8|gpu:3090:4(S:0-1)|gpu:3090:0(IDX:N/A)",
        "n3|8/0/0/8|gpu:1g.10gb:7(S:0),gpu:2g.20gb:3|gpu:1g.10gb:7(IDX:0-6),gpu:2g.20gb:1(IDX:0)",
        "n4|0/0/8/8|gpu:a100:8|gpu:a100:0",
        "n5|1/3/0/4|(null)|gpu:0",
    )  # fmt: skip
    assert lab.capacity() == Capacity(4, Share(23, 36), Share(11, 22))


def test_cluster_without_a_running_machine_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for lines in ([], ["n1|0/0/8/8|gpu:a100:8|gpu:a100:0"]):
        lab = answering(tmp_path, monkeypatch, *lines)
        assert lab.capacity() == Capacity(0, Share(0, 0), Share(0, 0))
    monkeypatch.setattr(watch, "capacity", lambda name: (lab.capacity(), ""))
    assert free_text("lab") == "no machine is up"
