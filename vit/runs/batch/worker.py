"""One of several independent processes that measure a checkpoint over a dataset; or a dry run.

    python -m vit.runs.batch.worker FOLDER NUMBER COUNT

Each process starts with its own share of the parts and then works on those of the others, so the measurement completes
as long as one process survives.
"""

import random
import sys
from pathlib import Path

from vit.errors import UserError
from vit.runs.batch import cluster_dry_run, parts
from vit.training.run_folder import record_outcome


def main(folder: Path, number: int, count: int) -> int:
    """Compute the missing parts, or do a dry run if one was requested; returns the exit status."""
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
                parts.write_part(folder, part, work.part(part))
    except UserError as error:
        record_outcome(folder, "failed", str(error))
        print(error, flush=True)
        return 2
    return 0


def order(total: int, number: int, count: int) -> list[int]:
    """Order the parts for one of several processes: its own share first, then the others' parts, shuffled.

    >>> order(6, 1, 3)[:2], sorted(order(6, 1, 3))
    ([1, 4], [0, 1, 2, 3, 4, 5])
    """
    own = list(range(number, total, count))
    others = sorted(set(range(total)) - set(own))
    random.Random(number).shuffle(others)  # so that two helping processes rarely compute the same part
    return own + others


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
