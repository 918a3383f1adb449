"""The engine of each cluster; this machine's own is `vit.runs.engines.local`."""

from collections.abc import Callable
from functools import lru_cache

from vit.errors import InvalidConfig
from vit.runs.engines.clusters import Cluster, find_cluster
from vit.runs.engines.contract import Engine
from vit.runs.engines.ray import Ray
from vit.runs.engines.slurm import Slurm

KINDS: dict[str, Callable[[Cluster], Engine]] = {"ray": Ray, "slurm": Slurm}


def cluster_engine(name: str) -> Engine:
    """The engine of a cluster.

    Raises:
        InvalidConfig: there is no such cluster, or it is set up wrongly.
    """
    cluster = find_cluster(name)
    if cluster.kind not in KINDS:
        raise InvalidConfig(f"The cluster {name} cannot be used: kind is {' or '.join(KINDS)}, not {cluster.kind}.")
    return _engine(cluster, KINDS[cluster.kind])


@lru_cache(64)
def _engine(cluster: Cluster, kind: Callable[[Cluster], Engine]) -> Engine:
    """One for as long as the cluster is set up alike: an engine remembers what it heard a moment ago."""
    return kind(cluster)
