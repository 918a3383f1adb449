"""Everything that needs a GPU, in steps: tests of the CUDA path, speed, and the training of presets.

    python benchmarks/gpu.py --out results                            # as many steps as nine minutes hold
    python benchmarks/gpu.py --out results --data folder:data/cifar10 --photos folder:data/imagenette   # what is left
    python benchmarks/gpu.py --out results --dry                      # here, on the CPU, tiny: a minute or two

A step is a process of its own. It leaves `results/<step>.json`: outcome, seconds, and figures or the traceback; the
next step runs whether or not it failed. A step that has its result is not repeated, except with `--again`. Training
goes on from its last state at each call until it has ended. `results/home` holds what to take along from a machine that
is given back: `summary.md`, the records, and the best weights of each run in float16, in parts of 15 MB:
`cat run-cifar.safetensors.* > model.safetensors` puts them together.

A bare machine needs torch 2.11, torchvision 0.26 and pydantic. timm is compared with where it is installed. Run one
training at a time: two that decode pictures at once starved each other of the processor on the one machine tried.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
from gpu_checks import environment, memory, model, processes, record, relevance, resume, step
from gpu_job import Job, Result
from gpu_speed import ablation, forward, masks, speed
from gpu_training import Unfinished, cifar, everyday, ladder, photos, streaming

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA begins: products that repeat bit by bit

MINUTES = 9.0  # of one call
LEAST = 20.0  # [s] that have to be left for another step to begin
ALONE = 8  # [s] kept for the summary and what is taken home
PART_BYTES = 15_000_000


STEPS: dict[str, Callable[[Job], Result]] = {
    found.__name__: found
    for found in (
        environment, model, record, relevance, step, resume, memory, processes, masks, forward, ablation, ladder,
        streaming, speed, cifar, everyday, photos,
    )
}  # fmt: skip


# --- One after the other --------------------------------------------------------------------------------------------


def do(name: str, job: Job) -> None:
    """Do one step in this process and leave its result."""
    begun = time.perf_counter()
    told: Result = {"step": name, "device": job.device, "dry": job.dry}
    try:
        told |= {"outcome": "passed", "result": STEPS[name](job)}
    except Unfinished as more:
        told |= {"outcome": "unfinished", "result": str(more)}
    except BaseException as error:
        told |= {"outcome": "failed", "result": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    told["seconds"] = round(time.perf_counter() - begun, 1)
    leave(job.out / f"{name}.json", told)


def leave(path: Path, told: Result) -> None:
    """Write a result whole."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(told, indent=2, default=str) + "\n")
    partial.replace(path)


def earlier_result(out: Path, name: str) -> Result:
    """What a step left; an empty result if it has not been done."""
    try:
        return dict(json.loads((out / f"{name}.json").read_text()))
    except (OSError, ValueError):
        return {}


def summary(out: Path) -> str:
    """All results for people."""
    lines = ["# What the GPU said", "", "| Step | Outcome | Seconds |", "| --- | --- | --- |"]
    results = [earlier_result(out, name) | {"step": name} for name in STEPS]
    lines += [f"| {r['step']} | {r.get('outcome', 'not done')} | {r.get('seconds', '')} |" for r in results]
    for result in results:
        if "result" in result:
            text = result.get("traceback") or json.dumps(result["result"], indent=2)
            lines += ["", f"## {result['step']}", "", STEPS[result["step"]].__doc__ or "", "", "```", text, "```"]
    return "\n".join(lines) + "\n"


@contextmanager
def limited(name: str, seconds: float, options: argparse.Namespace) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does one step, ended with all of its own when its time is up."""
    command = [sys.executable, __file__, "--only", name, "--out", str(options.out), "--data", options.data]
    command += ["--photos", options.photos, "--everyday", options.everyday, "--backbone", options.backbone]
    command += ["--seconds", str(seconds), "--device", options.device] + ["--dry"] * options.dry
    with (options.out / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()


def run_all(options: argparse.Namespace) -> None:
    """Do the steps that are left, while there is time, and tell."""
    options.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * options.minutes - ALONE
    for name in options.step or STEPS:
        before = earlier_result(options.out, name)
        if before.get("outcome") in ("passed", "failed") and not options.again:
            continue
        seconds = until - time.monotonic()
        if seconds < LEAST:
            print(f"{name}: left for the next call", flush=True)
            continue
        (options.out / f"{name}.json").unlink(missing_ok=True)
        with limited(name, seconds, options) as process:
            try:
                process.wait(seconds)
                words = f"It ended with status {process.returncode}. {name}.log holds what it said."
                told: Result = {"outcome": "failed", "result": words, "seconds": None}
            except subprocess.TimeoutExpired:  # with the whole of a call to itself, it would not end either
                whole = seconds > 60 * options.minutes * 0.9
                words = f"It was cut off after {seconds:.0f} s."
                told = {"outcome": "failed" if whole else "unfinished", "result": words, "seconds": round(seconds)}
        result = earlier_result(options.out, name)
        if not result:
            leave(options.out / f"{name}.json", told | {"step": name})
        result = result or told
        sentence = str(result["result"])[:200].replace("\n", " ") if result["outcome"] != "passed" else ""
        print(f"{name}: {result['outcome']}, {result['seconds']} s  {sentence}".rstrip(), flush=True)
    (options.out / "summary.md").write_text(summary(options.out))
    collect(options.out)
    print(options.out / "summary.md")


def collect(out: Path) -> None:
    """Put what is to be taken home into a few files of at most 15 MB: see the top of this file."""
    home = out / "home"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    shutil.copy(out / "summary.md", home)
    with tarfile.open(home / "records.tar.gz", "w:gz") as archive:
        for path in sorted(out.rglob("*")):
            if path.suffix in (".json", ".jsonl", ".log", ".md") and home not in path.parents:
                archive.add(path, path.relative_to(out))
    for run in sorted(out.glob("run-*")):
        weights = run / "checkpoints" / "best" / "model.safetensors"
        if weights.exists():
            content = in_half(weights)
            for number, start in enumerate(range(0, len(content), PART_BYTES)):
                (home / f"{run.name}.safetensors.{number}").write_bytes(content[start : start + PART_BYTES])


def in_half(weights: Path) -> bytes:
    """A file of weights in float16."""
    from safetensors.torch import load_file, save

    return bytes(save({name: tensor.half() for name, tensor in load_file(weights).items()}))


def main() -> None:
    """Do all steps, or one in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of results")
    parser.add_argument("--data", default="cifar10", help="of the training: cifar10, or folder:PATH")
    parser.add_argument("--photos", default="", help="of the training on photos: folder:PATH")
    parser.add_argument("--everyday", default="", help="of the training on everyday things: folder:PATH")
    parser.add_argument("--backbone", default="", help="checkpoint that this training starts from")
    parser.add_argument("--dry", action="store_true", help="tiny, on the CPU")
    parser.add_argument("--step", action="append", choices=STEPS, help="this one only; may be given several times")
    parser.add_argument("--again", action="store_true", help="also what has been done")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of this call")
    parser.add_argument("--device", default="", help="cuda:0, or cpu with --dry")
    parser.add_argument("--only", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=math.inf, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.device = options.device or ("cpu" if options.dry else "cuda:0")
    if options.device.startswith("cuda"):
        import torch

        if not torch.cuda.is_available():
            parser.error("torch sees no GPU here. Try the steps with --dry.")
    if options.only:
        names = ("device", "dry", "out", "data", "seconds", "photos", "everyday", "backbone")
        do(options.only, Job(**{name: getattr(options, name) for name in names}))
    else:
        run_all(options)


if __name__ == "__main__":
    main()
