"""Where things lie: the project, the folders that it fills, and what the environment names instead.

Installed as a package, without a project around it, the current folder stands for the project's.
"""

import os
from contextlib import suppress
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]  # the folder that holds the package `vit`
INSTALLED = not (PROJECT / "pyproject.toml").is_file()  # that folder is Python's, where nothing of ours may be written


def _home() -> Path:
    return Path.cwd() if INSTALLED else PROJECT


def checkpoints_folder() -> Path:
    """`checkpoints/` of the project, or where the environment variable VIT_CHECKPOINTS points."""
    return Path(os.environ.get("VIT_CHECKPOINTS") or _home() / "checkpoints")


def downloads_folder() -> Path:
    """`downloads/` of the project, or where the environment variable VIT_DOWNLOADS points."""
    return Path(os.environ.get("VIT_DOWNLOADS") or _home() / "downloads")


def pictures_folder() -> Path:
    """`pictures/` of the project, or where the environment variable VIT_PICTURES points."""
    return Path(os.environ.get("VIT_PICTURES") or _home() / "pictures")


def runs_folder() -> Path:
    """`runs/` of the project, or where the environment variable VIT_RUNS points."""
    return Path(os.environ.get("VIT_RUNS") or _home() / "runs").absolute()


def clusters_file() -> Path:
    """The app's secrets file, in which clusters are set up, or the file that VIT_CLUSTERS names."""
    return Path(os.environ.get("VIT_CLUSTERS") or _home() / ".streamlit" / "secrets.toml").absolute()


def data_roots() -> list[Path]:
    """Folders in which datasets are kept, uploads in the first: VIT_DATA_ROOTS, or `data/` of the project."""
    named = [root for root in os.environ.get("VIT_DATA_ROOTS", "").split(os.pathsep) if root]
    return [Path(os.path.abspath(Path(root).expanduser())) for root in named] or [_home() / "data"]


def environment_with_package() -> dict[str, str]:
    """This process's environment for a Python that imports this very package, wherever it is started."""
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def split_part(path: Path) -> tuple[Path, str]:
    """A path, and which of several models in one file is meant: what stands behind "#" if no file is called so.

    >>> split_part(Path("somewhere/dino.pth#student"))
    (PosixPath('somewhere/dino.pth'), 'student')
    """
    name, mark, part = path.name.rpartition("#")
    if not (name and part and mark):
        return path, ""
    with suppress(OSError, ValueError):  # a name that no file can have
        if os.path.lexists(path):
            return path, ""
    return path.with_name(name), part
