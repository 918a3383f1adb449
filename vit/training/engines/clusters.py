"""Clusters that an administrator has configured, by name, in the app's secrets file.

    # .streamlit/secrets.toml, or the file that VIT_CLUSTERS names
    [clusters.lab]
    kind = "ray"
    address = "http://head.example.org:8265"     # of its dashboard
    token_file = "/etc/vit/lab.token"            # read for each call, never shown
    runs = "/shared/runs"                        # mounted under this path here and on all nodes
    data = ["/shared/data"]                      # dataset folders that are mounted on the nodes
    python = "/shared/venv/bin/python"           # the nodes' interpreter, which has `vit`'s dependencies
    code = "/shared/vit-explorer"                # a checkout, if `vit` is not installed on the nodes
    cpus = 4                                     # processors and threads per process, 1 by default

    [clusters.hpc]
    kind = "slurm"
    runs = "/scratch/runs"
    partition = "gpu"
    setup = ["module load cuda"]                 # first lines of the batch script

    [clusters.hpc.limits]
    runs_per_person = 2
    nodes = 4
    minutes = 2880

Pages accept no addresses: only the owner of this file can name machines.
"""

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from vit.errors import InvalidConfig
from vit.paths import clusters_file
from vit.training.engines.contract import HERE, NAME
from vit.untrusted import Unreadable, brief, brief_list, read_bytes
from vit.validation import sentence

_FILE_BYTES = 1 << 20  # size limit of the file


class Limits(BaseModel):
    """Limits on what people may run on a cluster.

    Attributes:
        runs_per_person: waiting and running runs together; None for no limit.
        nodes: per run.
        processes: per run and node.
        minutes: per attempt; None for the cluster's own limit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    runs_per_person: int | None = Field(default=None, ge=1)
    nodes: int = Field(default=1, ge=1, le=1024)
    processes: int = Field(default=8, ge=1, le=64)
    minutes: int | None = Field(default=None, ge=1)


class Cluster(BaseModel):
    """Configuration of a cluster; the fields are the keys of its table in the file.

    Attributes:
        cpus: processors per process, which also sets its number of threads.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = Field(pattern=rf"^{NAME.pattern}$")
    kind: str
    runs: Path
    address: str = ""
    token_file: Path | None = None
    data: tuple[Path, ...] = ()
    python: str = "python"
    cpus: int = Field(default=1, ge=1, le=256)
    code: Path | None = None
    partition: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]*$")
    setup: tuple[str, ...] = ()
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _consistent(self) -> "Cluster":
        if self.name == HERE:
            raise ValueError(f"{HERE} is the name of this machine.")
        if not all(path.is_absolute() for path in (self.runs, *self.data, *([self.code] if self.code else []))):
            raise ValueError("runs, data and code must be paths from the root.")
        if self.kind == "ray" and not (self.address.startswith(("http://", "https://")) and self.token_file):
            raise ValueError(
                "a Ray cluster needs address, that of its dashboard with http:// or https://, and token_file."
            )
        return self


class Clusters(BaseModel):
    """Contents of the file: usable clusters, and for each other one why it is not."""

    usable: dict[str, Cluster]
    problems: dict[str, str]


def read_clusters() -> Clusters:
    """Return the configured clusters; none without a file."""
    path = clusters_file()
    try:
        facts = path.stat()
    except OSError:
        return Clusters(usable={}, problems={})
    return _read_clusters_file(path, facts.st_mtime_ns, facts.st_size)


@lru_cache(8)
def _read_clusters_file(path: Path, changed: int, size: int) -> Clusters:
    usable, problems = {}, {}
    try:
        tables: Any = tomllib.loads(read_bytes(path, _FILE_BYTES).decode()).get("clusters", {})
    except (OSError, Unreadable, ValueError, RecursionError) as error:
        return Clusters(usable={}, problems={"clusters": f"{path.name} cannot be read: {brief(str(error))}."})
    for name, table in tables.items() if isinstance(tables, dict) else ():
        try:
            usable[name] = Cluster.model_validate({"name": name} | table)
        except ValidationError as error:
            problems[name] = sentence(error)
        except TypeError:
            problems[name] = "it is no table."
    return Clusters(usable=usable, problems=problems)


def find_cluster(name: str) -> Cluster:
    """Return a cluster's configuration.

    Raises:
        InvalidConfig: there is no such cluster, or its configuration is invalid.
    """
    clusters = read_clusters()
    if name in clusters.usable:
        return clusters.usable[name]
    if name in clusters.problems:
        raise InvalidConfig(f"The cluster {name} cannot be used: {clusters.problems[name]}")
    names = brief_list([HERE, *clusters.usable])
    raise InvalidConfig(f"There is no cluster {brief(name)}. Choose from: {names}.")


def downloads_of(cluster: Cluster, data: str, root: str) -> str:
    """Return the download folder for a cluster's nodes: `root` if they can see it, else their first data folder.

    Raises:
        InvalidConfig: `data` names a folder that the nodes cannot see.
    """

    def visible(folder: str) -> bool:
        return not cluster.data or any(Path(folder).is_relative_to(shared) for shared in cluster.data)

    kind, _, path = data.partition(":")
    if kind == "folder" and not visible(path):
        folders = ", ".join(map(str, cluster.data))
        raise InvalidConfig(f"data: the machines of {cluster.name} see {folders}, and {path} is in none of these.")
    return root if visible(root) else str(cluster.data[0])


def run_folders() -> list[Path]:
    """Return the folders that hold the clusters' runs."""
    return list(dict.fromkeys(cluster.runs for cluster in read_clusters().usable.values()))
