"""One of several processes that measure a checkpoint over a dataset, which know nothing of each other; or a dry run.

    python -m vit.runs.batch.worker FOLDER NUMBER COUNT

Each begins with its own share of the parts and then helps with those of the others, so that all is done as long as one
of them lives.
"""

import random
import sys
from pathlib import Path

from vit.errors import UserError
from vit.runs.batch import cluster_dry_run, parts
from vit.training.run_folder import record_outcome


def main(folder: Path, number: int, count: int) -> int:
    """Measure what is missing, or try; returns the exit status."""
    try:
        if (folder / cluster_dry_run.REQUEST).exists():
            cluster_dry_run.main(folder)
            return 0
        work = parts.read_measurement(folder).opened()
        parts.write_plan(folder, work)
        for part in order(work.parts, number, count):
            if (folder / "stop").exists():
                break
            if not parts.path_of(folder, part).exists():
                parts.keep(folder, part, work.part(part))
    except UserError as error:
        record_outcome(folder, "failed", str(error))
        print(error, flush=True)
        return 2
    return 0


def order(total: int, number: int, count: int) -> list[int]:
    """Parts as one of several processes goes through them: its own, then those of the others, all mixed up.

    >>> order(6, 1, 3)[:2], sorted(order(6, 1, 3))
    ([1, 4], [0, 1, 2, 3, 4, 5])
    """
    own = list(range(number, total, count))
    others = sorted(set(range(total)) - set(own))
    random.Random(number).shuffle(others)  # two that help do not follow each other
    return own + others


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
