"""Tracker plug-in for Weights & Biases. Account, project and mode come from its own environment variables.

WANDB_API_KEY, WANDB_PROJECT, WANDB_MODE=offline and so on: docs.wandb.ai. Its files are written to the run's folder,
unless WANDB_DIR is set. It sends neither code nor system metrics.
"""

import os
from collections.abc import Sequence
from typing import Any

from vit.training.trackers.plugin import Point, RunFacts, Tracker


class _Run:
    def __init__(self, run: Any):
        self.id, self._run = run.id, run

    def log(self, points: Sequence[Point]) -> None:
        for point in points:
            self._run.log(dict(point.figures), step=point.step)

    def finish(self, outcome: str) -> None:
        import wandb  # noqa: PLC0415 # optional

        self._run.summary["outcome"] = outcome
        self._run.finish(exit_code=1 if outcome == "failed" else 0)
        wandb.teardown()  # ends its own process


def open_run(facts: RunFacts, run_id: str) -> Tracker:
    """Start a run in Weights & Biases, or resume one."""
    import wandb  # noqa: PLC0415 # optional

    if not os.environ.get("WANDB_DIR"):
        facts.folder.mkdir(exist_ok=True)
    settings = wandb.Settings(
        silent=True, console="off", disable_git=True, save_code=False, x_disable_meta=True, x_disable_stats=True
    )
    run = wandb.init(
        id=run_id or None,
        resume="allow",
        name=facts.name,
        config=dict(facts.settings),
        dir=os.environ.get("WANDB_DIR") or facts.folder,
        settings=settings,
    )
    return _Run(run)
