"""A Ray cluster of three nodes on this machine, in a network namespace that has only loopback."""

import ctypes
import fcntl
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from functools import cache
from pathlib import Path

TURNS = 4  # sets of ports that a node uses in turn
ATTEMPTS = 3  # timeout to start a node
NODE = "VIT_TEST_NODE"  # in the environment of all processes of a node
MARK = "VIT_TEST_CLUSTER"  # in the environment of all processes of a cluster, to find and kill them


@cache
def enter_own_network() -> None:
    """Move this process and its future children to a new network namespace with only loopback; once per process.

    Loopback gets a second address, as Slurm does not serve a machine that has 127.0.0.1 alone.

    Raises:
        PermissionError: root is required.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(0x40000000):  # CLONE_NEWNET, from linux/sched.h
        raise PermissionError(os.strerror(ctypes.get_errno()))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        up = struct.pack("16sh14x", b"lo", 0x1 | 0x40)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(any_socket, 0x8914, up)  # SIOCSIFFLAGS
        second = struct.pack("16sHH4s8x", b"lo:1", socket.AF_INET, 0, socket.inet_aton("10.79.0.1"))
        fcntl.ioctl(any_socket, 0x8916, second)  # SIOCSIFADDR


def marked(value: str, name: str = MARK) -> list[int]:
    """Return the processes that a cluster started, or those with another value in their environment."""
    result = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{name}={value}".encode() in path.read_bytes().split(b"\0"):
                result.append(int(path.parent.name))
        except OSError:
            continue
    return result


def end_marked(value: str, name: str = MARK) -> None:
    """Kill them, and wait until none is left."""
    while pids := [pid for pid in marked(value, name) if pid != os.getpid()]:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


class LocalCluster:
    """A cluster whose processes have a mark in their environment, by which they are found and killed."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(8)

    def processes(self, words: str) -> list[int]:
        """Return the cluster's processes whose command line contains `words`."""
        return [pid for pid in marked(self.mark) if words in command_of(pid)]

    def end(self) -> None:
        """Kill all processes by id: `ray stop` would end every other Ray of the machine, too."""
        end_marked(self.mark)


class RayCluster(LocalCluster):
    """A head without processors, and nodes with one each.

    Attributes:
        address: of its dashboard.
        token: the file with its token.
    """

    def __init__(self, folder: Path):
        super().__init__()
        self.folder, self.token = folder, folder / "token"
        folder.mkdir(parents=True)
        self.token.write_text(secrets.token_hex(32))
        self.address = "http://127.0.0.1:8299"
        self.starts: Counter[int] = Counter()  # of each node
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTEST_"))},
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token),
            "RAY_DISABLE_IMPORT_WARNING": "1",
            MARK: self.mark,
        }

    def _start(self, number: int, *arguments: str) -> None:
        """Start a node; retry after Ray's own timeout of half a minute, which expires on a busy machine."""
        for _ in range(ATTEMPTS):
            done = self._start_once(number, *arguments)
            if done.returncode == 0 or "timed out during startup" not in done.stdout + done.stderr:
                break
            end_marked(self._node(number), NODE)
        assert done.returncode == 0, done.stdout + done.stderr

    def _start_once(self, number: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Start a node with ports outside the range that Ray gives to workers.

        The ports differ from those of the previous start, as when Ray chooses them. Otherwise the new node would
        receive what the head still sends to a dead one, such as a reservation of processors, and keep it.
        """
        self.starts[number] += 1
        turn = self.starts[number] % TURNS
        base, ports = 26000 + 100 * number + 20 * turn, 27000 + 200 * number + 50 * turn
        named = (
            "dashboard-agent-listen-port", "dashboard-agent-grpc-port", "metrics-export-port",
            "runtime-env-agent-port", "node-manager-port", "object-manager-port",
        )  # fmt: skip
        command = [str(Path(sys.executable).with_name("ray")), "start", *arguments, "--num-gpus=0"]
        command += ["--disable-usage-stats", "--object-store-memory=100000000"]
        command += [f"--min-worker-port={ports}", f"--max-worker-port={ports + 49}"]
        command += [f"--{name}={base + i}" for i, name in enumerate(named, 11)]
        own = {NODE: self._node(number)}
        return subprocess.run(command, env=self.environment | own, capture_output=True, text=True, timeout=180)

    def _node(self, number: int) -> str:
        """Return the environment value that marks the processes of a node."""
        return f"{self.folder}-{number}"

    def start_head(self) -> None:
        """Start the head, which runs the drivers of jobs and, without processors, nothing else."""
        self._start(
            0, "--head", "--port=6399", "--dashboard-host=127.0.0.1", "--dashboard-port=8299",
            "--num-cpus=0", f"--temp-dir={self.folder / 't'}", "--ray-client-server-port=26001",
        )  # fmt: skip

    def start_node(self, number: int) -> None:
        """Start a node that trains."""
        self._start(number, "--address=127.0.0.1:6399", "--num-cpus=1")


def command_of(pid: int) -> str:
    """Return a process's command line, "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
