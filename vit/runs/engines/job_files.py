"""An engine that nobody here drives: a run becomes job files, a person hands one over, and its folder says how it is.

    job.sh           for sbatch
    trainjob.yaml    for kubectl: Kubeflow Trainer
    rayjob.yaml      for kubectl: KubeRay
    skypilot.yaml    for sky

The last three start containers, and are written where `image` and `volume` are set up.

Source: https://www.kubeflow.org/docs/components/trainer/ (v2), https://docs.ray.io/en/latest/cluster/kubernetes/,
https://docs.skypilot.co/en/latest/reference/yaml-spec.html
"""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

from vit.files import replaced, silence
from vit.runs.attempts import KILLED
from vit.runs.engines.clusters import Cluster
from vit.runs.engines.contract import (
    Capacity,
    Engine,
    Handle,
    Look,
    Refused,
    Request,
    Unreachable,
    conclude,
    is_over,
    leave_stop,
    submitting,
)
from vit.runs.engines.slurm_script import SCRIPT, batch_script
from vit.training.run_folder import ENGINE, changing, read_json

SILENT_SECONDS = 300.0  # [s] without a sign of life, after which nobody knows; compiling a large model takes minutes
_COMMANDS = {
    SCRIPT: "sbatch",
    "trainjob.yaml": "kubectl create -f",
    "rayjob.yaml": "kubectl create -f",
    "skypilot.yaml": "sky jobs launch",
}
_RAY = "2.60.0"  # of requirements-cluster.txt


class JobFiles(Engine):
    """An engine that takes job files from a person's hands."""

    def __init__(self, cluster: Cluster):
        self.cluster, self.name = cluster, cluster.name

    def capacity(self) -> Capacity:
        """Nobody knows.

        Raises:
            Unreachable: always.
        """
        raise Unreachable("what is free is not known here; you hand the run over yourself")

    def submit(self, folder: Path, request: Request) -> Handle:
        """Write the files."""
        if request.workers:
            raise Refused(f"{self.name} takes training runs alone: nobody here would know when the rest is done.")
        with submitting(self, folder, request) as handle, changing(folder):
            for name, text in files(self.cluster, handle, request).items():
                with replaced(folder / name) as file:
                    file.write(text.encode())
        return handle

    def look(self, handle: Handle) -> Look:
        """By its folder: what its job said at the end, or signs of life.

        An attempt's last word is not the run's: what drives it may start it again, after a time limit above all.

        Raises:
            Unreachable: there has been none for a while.
        """
        outcome = read_json(handle.folder / "outcome.json").get("outcome")
        if outcome == "finished" or is_over(handle):
            return Look("gone")
        try:
            silent = silence(handle.folder / "heartbeat")
        except OSError:
            return Look("waiting", f"Hand over one of its job files: {', '.join(written(handle.folder))}.")
        if silent > SILENT_SECONDS and outcome == "stopped":
            return Look("waiting", "It saved itself when its time was over. What it was given to starts it again.")
        if silent > SILENT_SECONDS:
            raise Unreachable(f"Nobody here drives {self.name}, and the run gives no sign of life.")
        host = read_json(handle.folder / "environment.json").get("host")
        return Look("running", nodes=(host,) if isinstance(host, str) else ())

    def ask_to_stop(self, folder: Path) -> None:
        """The trainer sees the file; a run that was not handed over is over."""
        leave_stop(self, folder)

    def kill(self, handle: Handle) -> None:
        """Declare a run over that gives no sign of life; a living one is not ours to kill.

        Raises:
            Refused: it lives.
        """
        try:
            if self.look(handle).word == "running":
                raise Refused(f"Stop it, or end it with what you gave it to: nobody here drives {self.name}.")
        except Unreachable:
            (handle.folder / "stop").touch()  # should it be alive after all
        conclude(handle, "stopped", KILLED)


def written(folder: Path) -> dict[str, str]:
    """The job files of a run, each with the command that hands it over; of a run on Slurm its batch script."""
    return {
        name: f"{command} {shlex.quote(str(folder / name))}"
        for name, command in _COMMANDS.items()
        if (folder / name).exists()
    }


def files(cluster: Cluster, handle: Handle, request: Request) -> dict[str, str]:
    """Every job file by its name, of a cluster of this kind or of Slurm; none for others."""
    if cluster.kind == "slurm":
        return {SCRIPT: batch_script(cluster, handle, request)}
    if cluster.kind != "files":
        return {}
    script = batch_script(cluster, handle, request).replace(f"export {ENGINE}=slurm", f"export {ENGINE}=files")
    made = {SCRIPT: script}
    if cluster.image and cluster.volume:
        kinds: dict[str, Callable[[Cluster, Handle, Request], str]] = {
            "trainjob.yaml": train_job, "rayjob.yaml": ray_job, "skypilot.yaml": sky_pilot,
        }  # fmt: skip
        if request.gpus and not cluster.accelerator:  # of which SkyPilot wants to know the name
            del kinds["skypilot.yaml"]
        made |= {name: kind(cluster, handle, request) for name, kind in kinds.items()}
    return made


def train_job(cluster: Cluster, handle: Handle, request: Request) -> str:
    """For Kubeflow Trainer: its torch runtime tells torchrun how many processes there are and where."""
    program = json.dumps(["-m", "vit.runs.engines.torchrun_job", str(handle.folder), handle.job])
    return f"""\
# {handle.job}: kubectl create -f trainjob.yaml
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  generateName: {_kubernetes_name(handle)}
spec:
  runtimeRef: {{name: torch-distributed}}
  trainer:
    image: {json.dumps(cluster.image)}
    command: [torchrun]
    args: {program}
    numNodes: {request.nodes}
    numProcPerNode: {len(request.devices)}
    env:
{_env(cluster, 4)}
    resourcesPerNode:
      limits: {_resources(cluster, request, len(request.devices))}
  runtimePatches:
  - manager: vit-attention-explorer/job-file
    trainingRuntimeSpec:
      template:
        spec:
          replicatedJobs:
          - name: node
            template:
              spec:
                template:
                  spec:
{_volumes(cluster, 20)}
                    containers:
                    - name: node
{_mounts(cluster, 22)}
"""


def ray_job(cluster: Cluster, handle: Handle, request: Request) -> str:
    """For KubeRay: a cluster of its own, whose head runs the driver that our own Ray clusters run."""
    driver = [cluster.python, "-m", "vit.runs.engines.ray_job", str(handle.folder), handle.job, str(cluster.cpus)]
    processes = request.nodes * len(request.devices)
    pod = f"""\
            image: {json.dumps(cluster.image)}
            env:
{_env(cluster, 12)}
{_mounts(cluster, 12)}"""
    return f"""\
# {handle.job}: kubectl create -f rayjob.yaml
apiVersion: ray.io/v1
kind: RayJob
metadata:
  generateName: {_kubernetes_name(handle)}
spec:
  entrypoint: {json.dumps(shlex.join(driver))}
  shutdownAfterJobFinishes: true
  rayClusterSpec:
    rayVersion: {json.dumps(_RAY)}
    headGroupSpec:
      rayStartParams: {{num-cpus: "0"}}
      template:
        spec:
          containers:
          - name: ray-head
            resources: {{limits: {{cpu: 2, memory: 8Gi}}}}
{pod}
{_volumes(cluster, 10)}
    workerGroupSpecs:
    - groupName: trainers
      replicas: {processes}
      minReplicas: {processes}
      maxReplicas: {processes}
      rayStartParams: {{}}
      template:
        spec:
          containers:
          - name: ray-worker
            resources:
              limits: {_resources(cluster, request, 1)}
{pod}
{_volumes(cluster, 10)}
"""


def sky_pilot(cluster: Cluster, handle: Handle, request: Request) -> str:
    """For SkyPilot, on the Kubernetes that has the volume."""
    each = len(request.devices)
    program = shlex.join(["-m", "vit.runs.engines.torchrun_job", str(handle.folder), handle.job])
    accelerators = f"\n  accelerators: {json.dumps(f'{cluster.accelerator}:{each}')}" if request.gpus else ""
    return f"""\
# {handle.job}: sky jobs launch skypilot.yaml
name: vit-{handle.folder.name}
num_nodes: {request.nodes}
resources:
  infra: k8s
  image_id: {json.dumps(f"docker:{cluster.image}")}
  cpus: {each * cluster.cpus}+{accelerators}
volumes:
  {json.dumps(str(cluster.runs))}: {json.dumps(cluster.volume)}
envs:
{_variables(cluster, 2)}
run: |
  torchrun --nnodes=$SKYPILOT_NUM_NODES --node-rank=$SKYPILOT_NODE_RANK --nproc-per-node={each} \\
    --master-addr=$(echo "$SKYPILOT_NODE_IPS" | head -n1) --master-port=29500 \\
    {program}
"""


def _kubernetes_name(handle: Handle) -> str:
    """Beginning of a name on Kubernetes, which gives it an end; names of machines are made of it, so it is short."""
    return f"vit-{handle.folder.name.rpartition('-')[2][:12]}-"


def _environment(cluster: Cluster) -> dict[str, str]:
    code = {"PYTHONPATH": str(cluster.code)} if cluster.code else {}
    return {ENGINE: "files", "OMP_NUM_THREADS": str(cluster.cpus), "PYTHONUNBUFFERED": "1"} | code


def _variables(cluster: Cluster, depth: int) -> str:
    return "\n".join(f"{' ' * depth}{name}: {json.dumps(value)}" for name, value in _environment(cluster).items())


def _env(cluster: Cluster, depth: int) -> str:
    pairs = _environment(cluster).items()
    return "\n".join(f"{' ' * depth}- {{name: {name}, value: {json.dumps(value)}}}" for name, value in pairs)


def _resources(cluster: Cluster, request: Request, processes: int) -> str:
    gpus = f", nvidia.com/gpu: {processes}" if request.gpus else ""
    return f"{{cpu: {processes * cluster.cpus}{gpus}}}"


def _volumes(cluster: Cluster, depth: int) -> str:
    """The claim with the runs, and memory that processes share, of which containers have 64 MB by themselves."""
    lines = [
        "volumes:",
        f"- {{name: runs, persistentVolumeClaim: {{claimName: {json.dumps(cluster.volume)}}}}}",
        "- {name: shm, emptyDir: {medium: Memory}}",
    ]
    return "\n".join(" " * depth + line for line in lines)


def _mounts(cluster: Cluster, depth: int) -> str:
    lines = [
        "volumeMounts:",
        f"- {{name: runs, mountPath: {json.dumps(str(cluster.runs))}}}",
        "- {name: shm, mountPath: /dev/shm}",
    ]
    return "\n".join(" " * depth + line for line in lines)
