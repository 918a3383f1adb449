"""MLflow in its own environment: what it stored, as read by its client."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from short_runs import notes, tiny

from vit.training.loop.metrics import read_metrics
from vit.training.loop.train import train
from vit.training.trackers import plugin

pytestmark = pytest.mark.mlflow

READ = """
import json, mlflow
client = mlflow.MlflowClient()
[experiment] = [one for one in client.search_experiments() if one.name == "pets"]
[run] = client.search_runs([experiment.experiment_id])
points = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
history = {name: [(point.step, point.value) for point in series] for name, series in points.items()}
info = {"id": run.info.run_id, "status": run.info.status, "name": run.info.run_name, "params": run.data.params}
print(json.dumps(info | {"history": history}))
"""


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let MLflow store in a folder, through its own environment variables."""
    if "mlflow" not in plugin.available():
        why = f"{plugin.PYTHON} names no Python with mlflow-skinny: make mlflow-test"
        (pytest.fail if "VIT_NEED_MLFLOW" in os.environ else pytest.skip)(why)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "pets")


def stored() -> dict[str, Any]:
    """Return MLflow's only run."""
    done = subprocess.run(
        [os.environ[plugin.PYTHON], "-c", READ], capture_output=True, text=True, timeout=300, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_mlflow_has_every_metric_of_a_run_and_its_resumption_in_one_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(track="mlflow", epochs=1), run)
    first = stored()
    assert (first["status"], first["name"]) == ("FINISHED", "run")
    train(tiny(track="mlflow", epochs=2), run, resume=True)
    second = stored()
    assert notes(run) == [] and second["id"] == first["id"]
    assert json.loads((run / "tracking.json").read_text())["mlflow"]["id"] == first["id"]
    for kind, shown, names in (
        ("step", "train", ("loss", "lr", "pictures_per_second")),
        ("validation", "validation", ("accuracy", "loss")),
        ("test", "test", ("accuracy", "loss")),
    ):
        records = [record for record in read_metrics(run / "metrics.jsonl") if record["kind"] == kind]
        for name in names:
            series = second["history"][f"{shown}/{name}"]
            assert series[-1] == [records[-1]["step"], records[-1][name]]
            if kind != "test":  # the file has only the last of them
                assert series == [[record["step"], record[name]] for record in records]
    assert second["params"]["dim"] == "16" and second["params"]["data"] == "shapes"


def test_store_that_refuses_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite-of-nobody:///store")
    train(tiny(track="mlflow", epochs=1), tmp_path / "run")
    [note] = notes(tmp_path / "run")
    assert note.startswith("Metrics are no longer sent to mlflow: ")


def test_unresponsive_server_delays_the_end_of_a_run_by_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vit.training.loop import tracking

    monkeypatch.setattr(tracking, "GRACE_SECONDS", 3.0)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    train(tiny(track="mlflow", epochs=1), tmp_path / "run")
    [note] = notes(tmp_path / "run")
    assert "mlflow: it did not end within 3 s" in note
