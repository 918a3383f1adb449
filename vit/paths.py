"""Paths of the project and its folders, and the environment variables that override them.

If `vit` is installed as a package, the current folder takes the place of the project folder.
"""

import os
from contextlib import suppress
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]  # the folder that holds the package `vit`
INSTALLED = not (PROJECT / "pyproject.toml").is_file()  # PROJECT is then site-packages, which must not be written to


def _home() -> Path:
    return Path.cwd() if INSTALLED else PROJECT


def checkpoints_folder() -> Path:
    """Return `checkpoints/` of the project, or the folder set by VIT_CHECKPOINTS."""
    return Path(os.environ.get("VIT_CHECKPOINTS") or _home() / "checkpoints")


def downloads_folder() -> Path:
    """Return `downloads/` of the project, or the folder set by VIT_DOWNLOADS: records, and torchvision's weights."""
    return Path(os.environ.get("VIT_DOWNLOADS") or _home() / "downloads")


def hub_cache() -> Path:
    """Return the cache that all programs with huggingface_hub share: HF_HUB_CACHE, HF_HOME, or in ~/.cache."""
    from huggingface_hub import constants  # noqa: PLC0415 # most callers need no Hub

    return Path(os.environ.get("HF_HUB_CACHE") or constants.HF_HUB_CACHE).expanduser()


def hub_snapshot(repository: str, commit: str) -> Path:
    """Return the folder of a commit in the Hub's cache, whether it exists or not."""
    return hub_cache() / f"models--{repository.replace('/', '--')}" / "snapshots" / commit


def name_of_folder(folder: Path) -> str:
    """Return a folder's name; that of a snapshot in the Hub's cache is owner--name@commit.

    >>> name_of_folder(Path("hub/models--google--vit/snapshots/3f49"))
    'google--vit@3f49'
    """
    if folder.parent.name == "snapshots" and (home := folder.parents[1].name).startswith("models--"):
        return f"{home.removeprefix('models--')}@{folder.name}"
    return folder.name


def is_hub_link(path: Path) -> bool:
    """Whether a path is a link in the Hub's cache to a file in it; its snapshots consist of such links."""
    if not path.is_symlink():
        return False
    cache = hub_cache().resolve()
    return cache in path.parent.resolve().parents and cache in path.resolve().parents


def pictures_folder() -> Path:
    """Return `pictures/` of the project, or the folder set by VIT_PICTURES."""
    return Path(os.environ.get("VIT_PICTURES") or _home() / "pictures")


def runs_folder() -> Path:
    """Return `runs/` of the project, or the folder set by VIT_RUNS."""
    return Path(os.environ.get("VIT_RUNS") or _home() / "runs").absolute()


def clusters_file() -> Path:
    """Return the file that configures clusters: the app's secrets file, or the file set by VIT_CLUSTERS."""
    return Path(os.environ.get("VIT_CLUSTERS") or _home() / ".streamlit" / "secrets.toml").absolute()


def data_roots() -> list[Path]:
    """Return the dataset folders: VIT_DATA_ROOTS, or `data/` of the project. Uploads go into the first."""
    named = [root for root in os.environ.get("VIT_DATA_ROOTS", "").split(os.pathsep) if root]
    return [Path(os.path.abspath(Path(root).expanduser())) for root in named] or [_home() / "data"]


def environment_with_package() -> dict[str, str]:
    """Return this process's environment with PYTHONPATH set, so that a subprocess imports the same `vit` package."""
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def split_part(path: Path) -> tuple[Path, str]:
    """Split "path#part", where `part` selects one of several models in a file; part is "" if there is none.

    A "#" in the name of an existing file is part of the name.

    >>> split_part(Path("somewhere/dino.pth#student"))
    (PosixPath('somewhere/dino.pth'), 'student')
    """
    name, mark, part = path.name.rpartition("#")
    if not (name and part and mark):
        return path, ""
    with suppress(OSError, ValueError):  # not a valid file name
        if os.path.lexists(path):
            return path, ""
    return path.with_name(name), part


def dataset_folder(spec: str) -> Path:
    """Return the folder of "folder:PATH" or "folder:PATH#LEVEL".

    >>> dataset_folder("folder:data/groceries#2")
    PosixPath('data/groceries')
    """
    return split_part(Path(spec.removeprefix("folder:")).expanduser())[0]
