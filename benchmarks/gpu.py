"""Run everything that needs a GPU, in steps: tests of the CUDA path, speed, and the training of presets.

    python benchmarks/gpu.py --out results                            # as many steps as fit into nine minutes
    python benchmarks/gpu.py --out results --data folder:data/cifar10 --photos folder:data/imagenette  # continues
    python benchmarks/gpu.py --out results --dry                      # tiny, on the CPU: a minute or two

Each step runs in its own process and writes `results/<step>.json`: outcome, seconds, and figures or the traceback. The
next step runs whether or not it failed. A step with a result is skipped, except with `--again`. Each call continues
a training from its last state until it has ended. `results/home` contains what to copy from a rented machine:
`summary.md`, the records, and the best weights of each run in float16, in parts of 15 MB, which
`cat run-cifar.safetensors.* > model.safetensors` joins.

A bare machine needs torch 2.11, torchvision 0.26, pydantic and pytest. Run one training at a time: on the one machine
tried, two that decoded pictures at once starved each other of processor time.
"""

import argparse
import importlib.metadata
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
import torch
from gpu_job import Job, Result
from gpu_speed import ablation, forward, masks
from gpu_training import Unfinished, cifar, ladder, photos

# Must be set before CUDA starts: deterministic matrix products.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

MINUTES = 9.0  # duration of one call
LEAST = 20.0  # time that must be left to start another step [s]
ALONE = 8  # time reserved for the summary and for `collect` [s]
PART_BYTES = 15_000_000


def environment(job: Job) -> Result:
    """Versions, device, and which optional packages are missing."""
    facts: Result = {"python": platform.python_version(), "cuda": torch.version.cuda, "cpus": os.cpu_count()}
    for package in ("torch", "torchvision", "pydantic", "pytest", "tensorboard", "safetensors", "numpy", "triton"):
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = None
    if job.device.startswith("cuda"):
        free, total = torch.cuda.mem_get_info()
        facts |= {"gpu": torch.cuda.get_device_name(), "memory": f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free"}
        facts["bfloat16"] = torch.cuda.is_bf16_supported(including_emulation=False)
    return facts


def checks(job: Job) -> Result:
    """Explanations and training on the device against the CPU: `tests/on_device`, and its differences."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--confcutdir", "tests/on_device"]
    command += ["tests/on_device", "--on", job.device]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
    return {"report": done.stdout.splitlines()}


STEPS: dict[str, Callable[[Job], Result]] = {
    step.__name__: step for step in (environment, checks, masks, forward, ablation, ladder, cifar, photos)
}


# --- Running the steps ----------------------------------------------------------------------------------------------


def run_step(name: str, job: Job) -> None:
    """Run one step in this process and write its result."""
    begun = time.perf_counter()
    result: Result = {"step": name, "device": job.device, "dry": job.dry}
    try:
        result |= {"outcome": "passed", "result": STEPS[name](job)}
    except Unfinished as more:
        result |= {"outcome": "unfinished", "result": str(more)}
    except BaseException as error:
        result |= {
            "outcome": "failed",
            "result": f"{type(error).__name__}: {error}",
            "traceback": traceback.format_exc(),
        }
    result["seconds"] = round(time.perf_counter() - begun, 1)
    write_result(job.out / f"{name}.json", result)


def write_result(path: Path, result: Result) -> None:
    """Write a result atomically."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=2, default=str) + "\n")
    partial.replace(path)


def earlier_result(out: Path, name: str) -> Result:
    """Return the result of a step, {} if it has none."""
    try:
        return dict(json.loads((out / f"{name}.json").read_text()))
    except (OSError, ValueError):
        return {}


def summary(out: Path) -> str:
    """Return all results as Markdown."""
    lines = ["# GPU results", "", "| Step | Outcome | Seconds |", "| --- | --- | --- |"]
    results = [earlier_result(out, name) | {"step": name} for name in STEPS]
    lines += [f"| {r['step']} | {r.get('outcome', 'not done')} | {r.get('seconds', '')} |" for r in results]
    for result in results:
        if "result" in result:
            text = result.get("traceback") or json.dumps(result["result"], indent=2)
            lines += ["", f"## {result['step']}", "", STEPS[result["step"]].__doc__ or "", "", "```", text, "```"]
    return "\n".join(lines) + "\n"


@contextmanager
def step_process(name: str, seconds: float, options: argparse.Namespace) -> Iterator[subprocess.Popen[bytes]]:
    """Run one step in a process, and kill it with its children when the block ends."""
    command = [sys.executable, __file__, "--only", name, "--out", str(options.out), "--data", options.data]
    command += ["--photos", options.photos]
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
    """Run the remaining steps while there is time, and print their outcomes."""
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
        with step_process(name, seconds, options) as process:
            try:
                process.wait(seconds)
                words = f"It ended with status {process.returncode}. {name}.log has its output."
                fallback: Result = {"outcome": "failed", "result": words, "seconds": None}
            except subprocess.TimeoutExpired:  # "failed" if it had a whole call to itself: it would never finish
                whole = seconds > 60 * options.minutes * 0.9
                words = f"It was cut off after {seconds:.0f} s."
                fallback = {"outcome": "failed" if whole else "unfinished", "result": words, "seconds": round(seconds)}
        result = earlier_result(options.out, name)
        if not result:
            write_result(options.out / f"{name}.json", fallback | {"step": name})
        result = result or fallback
        sentence = str(result["result"])[:200].replace("\n", " ") if result["outcome"] != "passed" else ""
        print(f"{name}: {result['outcome']}, {result['seconds']} s  {sentence}".rstrip(), flush=True)
    (options.out / "summary.md").write_text(summary(options.out))
    collect(options.out)
    print(options.out / "summary.md")


def collect(out: Path) -> None:
    """Collect the files of `results/home`, in parts of at most 15 MB; see the docstring of this module."""
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
            content = half_precision(weights)
            for number, start in enumerate(range(0, len(content), PART_BYTES)):
                (home / f"{run.name}.safetensors.{number}").write_bytes(content[start : start + PART_BYTES])


def half_precision(weights: Path) -> bytes:
    """Return the content of a file of weights, converted to float16, with its metadata: classes and configuration."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save

    with safe_open(weights, "pt") as file:
        metadata = file.metadata()
    return bytes(save({name: tensor.half() for name, tensor in load_file(weights).items()}, metadata))


def main() -> None:
    """Run all steps, or one in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of results")
    parser.add_argument("--data", default="cifar10", help="dataset of the training: cifar10, or folder:PATH")
    parser.add_argument("--photos", default="", help="dataset of the training on photos: folder:PATH")
    parser.add_argument("--dry", action="store_true", help="tiny, on the CPU")
    parser.add_argument("--step", action="append", choices=STEPS, help="run only this step; can be repeated")
    parser.add_argument("--again", action="store_true", help="repeat steps that have a result")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="duration of this call")
    parser.add_argument("--device", default="", help="cuda:0, or cpu with --dry")
    parser.add_argument("--only", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=math.inf, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.device = options.device or ("cpu" if options.dry else "cuda:0")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("torch sees no GPU here. Try the steps with --dry.")
    if options.only:
        names = ("device", "dry", "out", "data", "seconds", "photos")
        run_step(options.only, Job(**{name: getattr(options, name) for name in names}))
    else:
        run_all(options)


if __name__ == "__main__":
    main()
