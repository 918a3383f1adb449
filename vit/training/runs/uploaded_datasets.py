"""Uploaded datasets and the runs that were trained on them."""

from vit.data.catalog import check_spec, is_upload
from vit.errors import InvalidDataset
from vit.files import remove_folder
from vit.paths import dataset_folder
from vit.training.runs.registry import Run, list_runs


def runs_on(spec: str) -> list[Run]:
    """The runs that learn, or learnt, from a folder or a part of it."""
    folder = dataset_folder(spec).resolve()

    def uses(run: Run) -> bool:
        data = str(run.config.get("data"))
        return data.startswith("folder:") and dataset_folder(data).resolve().is_relative_to(folder)

    return [run for run in list_runs() if uses(run)]


def delete_upload(spec: str) -> None:
    """Remove a dataset that was uploaded.

    Raises:
        InvalidDataset: there is none, it came in another way, or a run needs it.
    """
    spec = check_spec(spec)
    if not is_upload(spec):
        raise InvalidDataset("Only what was uploaded can be deleted here. Remove other folders on the server itself.")
    if names := [run.name for run in runs_on(spec) if run.alive]:
        raise InvalidDataset(f"The run {names[0]!r} needs it. Stop that run first, or wait for its end.")
    try:
        remove_folder(dataset_folder(spec))
    except OSError as error:
        raise InvalidDataset(f"It cannot be deleted ({error.strerror}).") from error
