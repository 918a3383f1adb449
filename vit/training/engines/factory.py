"""Create the engine of a cluster; this machine's is `vit.training.engines.local`."""

from collections.abc import Callable
from functools import lru_cache

from vit.errors import InvalidConfig
from vit.training.engines.clusters import Cluster, find_cluster
from vit.training.engines.contract import Engine
from vit.training.engines.ray import Ray
from vit.training.engines.slurm import Slurm

KINDS: dict[str, Callable[[Cluster], Engine]] = {
    "ray": Ray,
    "slurm": Slurm,
}


def cluster_engine(name: str) -> Engine:
    """Return the engine of a cluster.

    Raises:
        InvalidConfig: there is no such cluster, or its configuration is invalid.
    """
    cluster = find_cluster(name)
    if cluster.kind not in KINDS:
        raise InvalidConfig(f"The cluster {name} cannot be used: kind is {' or '.join(KINDS)}, not {cluster.kind}.")
    return _engine(cluster, KINDS[cluster.kind])


@lru_cache(64)
def _engine(cluster: Cluster, kind: Callable[[Cluster], Engine]) -> Engine:
    """Return one instance per cluster configuration, because an engine caches its latest responses."""
    return kind(cluster)
