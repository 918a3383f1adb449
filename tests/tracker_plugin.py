"""Trackers as another package would provide them through entry points: one that works, one that raises, one that hangs.

Their calls are recorded in `tracked.jsonl` in the run's folder, one line per call.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

MODULE = """
import json, time

class Run:
    def __init__(self, facts, run_id):
        self.id, self.file = run_id or "number one", facts.folder.parent / "tracked.jsonl"
        self.write(open=run_id, name=facts.name, settings=dict(facts.settings))
    def write(self, **values):
        with self.file.open("a") as file:
            file.write(json.dumps(values) + "\\n")
    def log(self, points):
        for step, t, figures in points:
            self.write(step=step, t=t, figures=dict(figures))
    def finish(self, outcome):
        self.write(finish=outcome)

class Raises(Run):
    def log(self, points):
        raise RuntimeError("The server said no.")

class Hangs(Run):
    def log(self, points):
        self.write(hangs=True)
        time.sleep(1e6)

works, raises, hangs = Run, Raises, Hangs
def refuses(facts, run_id):
    raise ConnectionError("Nobody is there.")
"""
NAMES = ("works", "raises", "hangs", "refuses")


@contextmanager
def installed_trackers(site: Path) -> Iterator[None]:
    """Install a package with these trackers for this process and its children."""
    metadata = site / "tracked-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "tracked.py").write_text(MODULE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tracked\nVersion: 1.0\n")
    points = "".join(f"{name} = tracked:{name}\n" for name in NAMES)
    (metadata / "entry_points.txt").write_text(f"[vit.trackers]\n{points}")
    from vit.training.trackers import plugin

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
        patch.delenv(plugin.PYTHON, raising=False)
        plugin.available.cache_clear()
        yield
    plugin.available.cache_clear()


def tracked(run: Path) -> list[dict[str, Any]]:
    """Return the recorded calls of a run's tracker."""
    return [json.loads(line) for line in (run / "tracked.jsonl").read_text().splitlines()]
