"""Tracker plug-in for MLflow. Server and experiment come from MLflow's own environment variables.

MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, MLFLOW_TRACKING_TOKEN and so on: mlflow.org/docs/latest.
"""

from collections.abc import Sequence
from typing import Any

from vit.training.trackers.plugin import Point, RunFacts, Tracker

_MOST = 1000  # metrics per request; source: MLflow's REST API, log-batch
_LENGTH = 500  # characters per parameter, which every store accepts
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED", "interrupted": "KILLED"}


class _Run:
    def __init__(self, client: Any, run_id: str):
        self.id, self._client = run_id, client

    def log(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric  # noqa: PLC0415 # optional

        metrics = [
            Metric(name, value, int(1000 * point.t), point.step)
            for point in points
            for name, value in point.figures.items()
        ]
        for first in range(0, len(metrics), _MOST):
            self._client.log_batch(self.id, metrics=metrics[first : first + _MOST])

    def finish(self, outcome: str) -> None:
        self._client.set_terminated(self.id, _STATUS[outcome])


def open_run(facts: RunFacts, run_id: str) -> Tracker:
    """Start a run in MLflow, or resume one."""
    import mlflow  # noqa: PLC0415 # optional

    started = mlflow.start_run(run_id=run_id or None, run_name=None if run_id else facts.name)
    client = mlflow.MlflowClient()
    known = client.get_run(started.info.run_id).data.params  # MLflow rejects a changed parameter
    texts = {name: str(value)[:_LENGTH] for name, value in facts.settings.items() if name not in known}
    if texts:
        mlflow.log_params(texts)
    return _Run(client, started.info.run_id)
