"""Without the Unix modules that Windows lacks, pictures can be analysed; what needs locks is refused in a sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vit.images.samples import SAMPLES

ROOT = Path(__file__).parents[1]

# Emulates Python on Windows as far as this package depends on it: no fcntl and resource, no opening of folders.
WINDOWS = """
import os, sys
import psutil  # what it asks of this system it would not ask there

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "resource"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
for name in ("fcntl", "resource"):
    sys.modules.pop(name, None)
for name in ("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "sched_getaffinity", "getloadavg"):
    delattr(os, name)
os.supports_dir_fd.clear()
os.supports_fd.clear()
os_open = os.open

def open_no_folder(path, *arguments, **more):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied")
    return os_open(path, *arguments, **more)

os.open = open_no_folder

from vit.cli.main import main
"""

EVERY_MODULE = """
import importlib, pkgutil
import vit

for module in pkgutil.walk_packages(vit.__path__, "vit."):
    importlib.import_module(module.name)
assert "fcntl" not in sys.modules and "resource" not in sys.modules
"""

COMMANDS = """
from pathlib import Path
from vit.files import replaced

with replaced(Path("whole")) as file:
    file.write(b"whole")
picture, run = sys.argv[1:]
assert main(["classify", picture, "--top", "1"]) == 0
assert main(["explain", picture, "--out", "map.png"]) == 0
assert main(["runs", "list"]) == 0
os.mkdir("linked")
os.symlink(os.path.join(os.environ["VIT_CHECKPOINTS"], "cifar10", "model.safetensors"), "linked/model.safetensors")
assert main(["classify", picture, "--checkpoint", "linked"]) == 2
assert main(["train", "--preset", "shapes", "--run-dir", run]) == 2
"""


def on_windows(program: str, *arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WINDOWS + program, *map(str, arguments)],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=500,
    )  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.slow
def test_every_module_can_be_imported_without_fcntl_and_resource(tmp_path: Path) -> None:
    done = on_windows(EVERY_MODULE, folder=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.exhaustive
@pytest.mark.slow
def test_pictures_are_classified_and_explained_without_locks_and_training_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("VIT_CHECKPOINTS", str(ROOT / "checkpoints"))
    done = on_windows(COMMANDS, SAMPLES["cat"].path, tmp_path / "run", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "%  cat " in done.stdout
    assert (tmp_path / "map.png").stat().st_size > 1000
    assert done.stderr.splitlines() == [
        "model.safetensors is a link. Copy the file itself there.",
        "Training, saving and downloading need file locks, which this system does not have: use Linux or macOS, or on "
        "Windows its subsystem for Linux (WSL).",
    ]
    assert not (tmp_path / "run").exists()
