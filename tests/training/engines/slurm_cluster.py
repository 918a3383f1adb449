"""A Slurm cluster of two nodes on this machine, from Debian's packages; daemons are started and killed directly."""

import os
import shutil
import subprocess
from pathlib import Path

from patience import PATIENCE, until
from ray_cluster import MARK, LocalCluster

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=5,batch_sched_delay=0,sched_interval=5
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=20
JobRequeue=1
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port=17011 CPUs=1 RealMemory=4000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port=17012 CPUs=1 RealMemory=4000
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=60 DefaultTime=30 State=UP OverSubscribe=NO
"""


def missing() -> str:
    """Return the first Slurm program that is not installed, "" if all are."""
    return next((name for name in NEEDED if shutil.which(name) is None), "")


class SlurmCluster(LocalCluster):
    """Two nodes of one processor each.

    Attributes:
        environment: variables that Slurm's commands need; jobs inherit them, by which they are found and killed, too.
    """

    def __init__(self, folder: Path):
        super().__init__()
        self.folder = folder
        for name in ("state", "munge", "spool-n1", "spool-n2"):
            (folder / name).mkdir(parents=True)
        folder.parent.chmod(0o755)
        (folder / "state").chmod(0o700)
        (folder / "munge").chmod(0o755)
        (folder / "munge" / "key").write_bytes(os.urandom(128))
        (folder / "munge" / "key").chmod(0o600)
        self.conf = folder / "slurm.conf"
        self.conf.write_text(_CONF.format(folder=folder, host=os.uname().nodename.partition(".")[0]))
        self.environment = {"SLURM_CONF": str(self.conf), "VIT_MASTER_ADDR": "127.0.0.1", MARK: self.mark}

    def _run(self, *command: str) -> str:
        environment = dict(os.environ) | self.environment
        environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self) -> None:
        """Start all daemons, and wait until both nodes are idle."""
        path = self.folder / "munge"
        files = [f"--{name}-file={path / name}" for name in ("key", "pid", "log", "seed")]
        self._run("munged", f"--socket={path / 'socket'}", *files, "--force")
        self.start_controller()
        for name in ("n1", "n2"):
            self.start_node(name)
        until(
            lambda: set(self._run("sinfo", "--noheader", "--Node", "--format=%T").split()) == {"idle"},
            lambda: f"that both machines are idle. {self._run('sinfo')}",
        )

    def start_controller(self) -> None:
        """Start the controller."""
        self._run("slurmctld", "-f", str(self.conf))

    def start_node(self, name: str) -> None:
        """Start a node."""
        self._run("slurmd", "-f", str(self.conf), "-N", name)

    def save(self) -> None:
        """Wait until the controller has saved the state of its jobs, which it does seconds after a change."""
        number = self._run("squeue", "--noheader", "--states=RUNNING", "--format=%A").split()[0]
        state = self.folder / "state" / "job_state"
        before = state.stat().st_mtime_ns if state.exists() else None
        self._run("scontrol", "update", f"JobId={number}", "Requeue=1")  # an update without effect
        until(lambda: state.exists() and state.stat().st_mtime_ns != before, "that the controller writes its state")
