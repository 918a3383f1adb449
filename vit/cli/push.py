"""The command push: upload a checkpoint to the Hugging Face Hub."""

import argparse
import sys
from pathlib import Path

from vit import progress as bars
from vit.checkpoints.catalog import find_checkpoint, list_folders
from vit.checkpoints.checkpoint import CONFIG
from vit.checkpoints.hub.push import Plan, plan_push, push
from vit.errors import InvalidRun, UserError
from vit.training.loop.run_folder import is_alive
from vit.training.runs import control, registry


def run_push(options: argparse.Namespace) -> None:
    """Print the files and the repository, upload, and print the URL."""
    plan = plan_push(_folder_of(options.source), options.repository, private=options.private, license=options.license)
    _describe(plan)
    if options.dry_run:
        return
    size = plan.sizes[plan.weights.name]
    with bars.tqdm(desc=plan.weights.name, total=size, unit="B", unit_scale=True, leave=False, disable=None) as bar:
        pushed = push(plan, options.message, lambda done, _: bar.update(done - bar.n))
    print(pushed.url)
    print(f"    python -m vit classify PICTURE --checkpoint {pushed.name}")


def _folder_of(source: str) -> Path:
    """Return the folder of a checkpoint, by name or path, or of a run's best checkpoint, by the run's id or folder."""
    if source in (folder.name for folder in list_folders()):
        return find_checkpoint(source)
    folder = Path(source)
    if (folder / "checkpoints").is_dir():
        written = folder / "checkpoints" / "best"
        trains, best = is_alive(folder), written if written.is_dir() else None
    elif (folder / CONFIG).is_file():
        return folder
    else:
        run = _find_run(source)
        trains, best = run.alive, run.best
    if trains:
        raise InvalidRun(f"{folder.name} still trains, and its best weights may change. Stop it first, or wait.")
    if best is None:
        raise InvalidRun(f"{folder.name} has no checkpoint yet: the first one is written after the first epoch.")
    return best


def _find_run(run_id: str) -> registry.Run:
    try:
        return registry.find_run(run_id, control.PATIENCE_SECONDS)
    except InvalidRun as error:
        raise UserError(
            f"There is neither a checkpoint nor a run {run_id!r}. `python -m vit runs` lists runs; checkpoints here: "
            f"{', '.join(folder.name for folder in list_folders()) or 'none'}."
        ) from error


def _describe(plan: Plan) -> None:
    kind = "private" if plan.private else "public"
    print(f"{plan.repository}: {'a' if plan.parent else 'a new'} {kind} repository", file=sys.stderr)
    for name, size in plan.sizes.items():
        print(f"{size:>14,} bytes  {name}{'  (replaced)' if name in plan.replaced else ''}", file=sys.stderr)
