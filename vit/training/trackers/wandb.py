"""Figures for Weights & Biases. Account, project and mode are for its own environment variables to say.

WANDB_API_KEY, WANDB_PROJECT, WANDB_MODE=offline and so on: docs.wandb.ai. What it keeps on the disk lies in the run's
folder, unless WANDB_DIR names another one. Neither code nor the state of this machine is sent.
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
    """Open a run in Weights & Biases, or continue one."""
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
