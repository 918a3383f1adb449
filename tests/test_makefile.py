"""What `make` installs with Debian's packages, with recorded instead of real commands."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

Make = Callable[..., tuple[subprocess.CompletedProcess[str], list[str]]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return `make(target, commands, user=0)`, which runs a target where only these commands exist.

    It returns the finished process, and the installations.
    """
    log = tmp_path / "log"

    def run(target: str, commands: str, user: int = 0) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        scripts = dict.fromkeys(("python", "tail", *commands.split()), "")
        scripts |= {"id": f"echo {user}", "apt-get": f'echo "$*" >> {log}'}
        if "sudo" in scripts:
            scripts["sudo"] = f'echo "sudo $*" >> {log}'
        for name, script in scripts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
        done = subprocess.run(
            [shutil.which("make") or "make", "-o", ".venv/ready-dev", f"BIN={tmp_path}", target],
            cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        lines = log.read_text().splitlines() if log.exists() else []
        return done, [line for line in lines if "install" in line]

    return run


SLURM = "slurmctld slurmd sbatch munged"


@pytest.mark.parametrize(
    ("target", "commands"),
    [("firefox", "firefox"), ("firefox", "firefox-esr"), ("webkit", "WebKitWebDriver Xvfb"), ("cluster", SLURM)],
)
def test_what_is_there_is_not_installed(make: Make, target: str, commands: str) -> None:
    done, installed = make(target, commands, user=1000)
    assert (done.returncode, installed) == (0, [])


@pytest.mark.parametrize(
    ("target", "commands", "packages"),
    [
        ("firefox", "", "firefox-esr"),
        ("webkit", "WebKitWebDriver", "webkit2gtk-driver xvfb"),
        ("webkit", "Xvfb", "webkit2gtk-driver xvfb"),
        *(("cluster", SLURM.replace(one, ""), "slurmctld slurmd slurm-client munge") for one in SLURM.split()),
    ],
)
def test_what_lacks_is_installed(make: Make, target: str, commands: str, packages: str) -> None:
    done, installed = make(target, commands)
    assert (done.returncode, installed) == (0, [f"install -y --no-install-recommends {packages}"])
    assert f"Installing Debian's {packages}, which needs administrator rights." in done.stdout


def test_another_user_installs_with_sudo(make: Make) -> None:
    done, installed = make("webkit", "sudo", user=1000)
    assert (done.returncode, installed) == (
        0, ["sudo apt-get install -y --no-install-recommends webkit2gtk-driver xvfb"]
    )  # fmt: skip


@pytest.mark.parametrize("target", ["firefox", "webkit", "cluster"])
def test_user_without_administrator_rights_is_told_what_to_do(make: Make, target: str) -> None:
    done, installed = make(target, "", user=1000)
    assert done.returncode != 0 and installed == []
    assert "As administrator: apt-get install " in done.stdout
