"""What the engines of clusters share: stopping and killing runs."""

import time
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path

from vit.training.engines.clusters import Cluster
from vit.training.engines.contract import Engine, Handle, Unreachable, record_end, request_stop
from vit.training.runs.attempts import KILLED


class ClusterEngine(Engine):
    """An engine that passes runs to a cluster.

    Attributes:
        cluster: its configuration.
    """

    def __init__(self, cluster: Cluster):
        self.cluster, self.name = cluster, cluster.name

    def request_stop(self, folder: Path) -> None:
        """Create the stop file, which the trainer checks for; end the job if it still waits."""
        request_stop(self, folder)

    def kill(self, handle: Handle) -> None:
        """End the job, and record that it was killed."""
        self._end_job(handle)
        record_end(handle, KILLED)

    @abstractmethod
    def _end_job(self, handle: Handle) -> None:
        """Kill a job, and return when it is over."""

    def _attempts(self, seconds: float, pause: float) -> Iterator[None]:
        """Yield every `pause` [s]; the caller returns when its job is over.

        Raises:
            Unreachable: `seconds` have passed.
        """
        until = time.monotonic() + seconds
        while True:
            yield
            if time.monotonic() > until:
                raise Unreachable(f"{self.name} was asked to end the run and has not done so. Try again in a minute.")
            time.sleep(pause)
