"""Write the folders of searches and trials as trainers leave them, without a process."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from short_runs import tiny

from vit.training.search.control import nonce_of
from vit.training.search.plan import make_plan

STEPS = 10  # per epoch


def write_search(root: Path, search_id: str = "20261121-000000-shapes-0000", **values: Any) -> Path:
    """Write a search of eight epochs that keeps the better half of the trials after epochs 2 and 4."""
    usual = dict(
        name="Shapes", config=tiny(epochs=8), space={"lr": "1e-4:1e-2:log", "weight_decay": "0:0.1"},
        trials=4, min_epochs=2, reduction_factor=2,
    )  # fmt: skip
    folder = root / ".searches" / search_id
    folder.mkdir(parents=True)
    (folder / "search.json").write_text(make_plan(**usual | values).model_dump_json())
    return folder


def write_trial(
    search: Path, number: int, accuracies: Sequence[float], outcome: str = "finished", **settings: Any
) -> Path:
    """Write the run of a trial with these accuracies, one per epoch.

    Args:
        outcome: "" for a trial in progress or interrupted.
    """
    root = search.parents[1]
    run = root / f"20261121-00000{number}-trial-{number}-aaaa"
    run.mkdir()
    start = time.time() - 100
    (run / "config.json").write_text(tiny(epochs=8, **settings).model_dump_json())
    about = {"name": f"Shapes, trial {number + 1}", "created": start + number, "devices": ["cpu"]}
    about |= {"search": search.name, "nonce": nonce_of(search.name, number), "halving": {"first": 2, "factor": 2}}
    (run / "about.json").write_text(json.dumps(about))
    records: list[dict[str, Any]] = [
        {"kind": "start", "step": 0, "total_steps": 8 * STEPS, "steps_per_epoch": STEPS, "epochs": 8}
    ]
    for epoch, accuracy in enumerate(accuracies, 1):
        result = {"step": epoch * STEPS, "epoch": epoch, "accuracy": accuracy, "loss": 1.0}
        records.append({"kind": "validation"} | result)
    lines = [json.dumps(record | {"t": start + record["step"], "attempt": 0}) for record in records]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (run / "alive.lock").touch()
    if outcome:
        end(run, outcome)
    return run


def end(run: Path, outcome: str, reason: str = "") -> None:
    (run / "outcome.json").write_text(json.dumps({"outcome": outcome, "reason": reason}))
