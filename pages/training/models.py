"""Hand the models of runs to the pages that look at them."""

from collections.abc import Sequence

from pages.shared import trained_models
from pages.shared.trained_models import TrainedModel
from pages.training import run_records
from vit.confidence import recorded, share
from vit.training.loop import run_folder
from vit.training.runs.registry import Run


def register() -> None:
    """Show the models of runs on pages Explore, Compare and Checkpoints."""
    trained_models.register(_models)


def _models() -> Sequence[TrainedModel]:
    return [_model(run) for run in run_records.every_run()]


def _model(run: Run) -> TrainedModel:
    facts = run_folder.read_json(run.best / "config.json").get("training") if run.best else None
    facts = facts if isinstance(facts, dict) else {}
    accuracy = recorded(facts) or recorded(facts, "validation_accuracy")
    return TrainedModel(
        run.id,
        run.name,
        run_folder.slug(run.name) or run.id,
        run.best,
        share(*accuracy) if accuracy else "",
        data=str(run.config.get("data", "")),
        data_root=str(run.config.get("data_root", "data")),
        snapshots=run.folder / "probes",
        waits_for=str(run.config.get("init_from") or "") if run.status == "waiting" else "",
    )
