"""A run's figures: one JSON object per line, appended while training, read at any moment."""

import json
import os
from pathlib import Path
from typing import Any


class MetricsWriter:
    """Append records to a file; a reader sees whole lines, whatever happens to the writer."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")  # a killed writer left half a line

    def write(self, **values: Any) -> None:
        """Append one record in one write."""
        os.write(self._file, (json.dumps(values) + "\n").encode())

    def close(self) -> None:
        """Give the file back."""
        os.close(self._file)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole records, in the order of their steps; torn lines are left out, and a file not yet there has none.

    Steps that a resumed run repeated appear once, as the latest attempt wrote them.
    """
    if not path.exists():
        return []
    latest: dict[tuple[str, int], dict[str, Any]] = {}
    for line in path.read_bytes().split(b"\n"):
        try:
            record = json.loads(line)
            latest[record["kind"], record["step"]] = record
        except (ValueError, KeyError, TypeError):
            continue
    return sorted(latest.values(), key=lambda record: record["step"])
