"""Compare a forward pass that makes every attention row available with transformers' `output_attentions=True`.

    python benchmarks/forward.py                          # ViT-B/16 at 224, 512 and 1,024 px, one picture
    python benchmarks/forward.py --sizes 224 --rounds 20

Both sides have the same random weights; the script checks that their logits agree. They alternate in one process, so
that other load on the machine affects both; each ratio is that of two consecutive timings. Memory is the peak of a
fresh process during the pass, minus its memory with the loaded model. At 1,024 px transformers needs 10 GB.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import ViTConfig as TheirConfig
from transformers import ViTForImageClassification

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import alternating
from vit.checkpoints.recognition import read
from vit.devices import memory
from vit.explain.record import record
from vit.model.transformer import VisionTransformer, rounded

THEIRS = "transformers, eager"
WAYS = (
    THEIRS,
    "ours, every map",
    "ours, queries and keys",
    'ours, queries and keys, precision="bfloat16"',  # inexact, so only on request
)
ROUNDS = {224: 15, 512: 7, 1024: 3}


def their_model() -> Any:
    """Return transformers' ViT-B/16 with random weights; also in the head, which transformers initialises near zero."""
    torch.manual_seed(0)
    model = ViTForImageClassification(TheirConfig(num_labels=1000, attn_implementation="eager")).eval()
    torch.nn.init.normal_(model.classifier.weight, std=0.1)
    return model


def our_model(theirs: Any) -> VisionTransformer:
    """Return the same model, loaded through the checkpoint reader."""
    reading = read({name: tensor.clone() for name, tensor in theirs.state_dict().items()}, theirs.config.to_dict())
    with torch.device("meta"):
        model = VisionTransformer(reading.config)
    model.load_state_dict(reading.tensors, assign=True)
    return model.eval()


def passes(selected: tuple[str, ...]) -> dict[str, Callable[[Tensor], Any]]:
    """Return the function of each side that processes pixels (1, 3, height, width)."""
    theirs = their_model()
    ours = our_model(theirs)
    ways: dict[str, Callable[[Tensor], Any]] = {
        WAYS[0]: lambda pixels: theirs(pixels, output_attentions=True, interpolate_pos_encoding=True),
        WAYS[1]: lambda pixels: ours(pixels, output_attentions=True),
        WAYS[2]: lambda pixels: record(ours, pixels),
    }
    if WAYS[3] in selected:
        small = rounded(ours)
        ways[WAYS[3]] = lambda pixels: record(small, pixels, "bfloat16")
    if len(selected) == 1:  # a separate process needs only one model
        ways = {selected[0]: ways[selected[0]]}
    return {name: ways[name] for name in selected}


@torch.inference_mode()
def times(size: int, rounds: int) -> dict[str, list[float]]:
    """Return the difference between the logits, and the duration of each side in every round [s]."""
    ways, pixels = passes(WAYS), torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))
    answers = {name: run(pixels).logits for name, run in ways.items()}  # also serves as warm-up
    expected = answers[THEIRS]
    apart = {name: float((result - expected).abs().max() / expected.abs().max()) for name, result in answers.items()}
    print(f"\n{size} px. Logits, relative to transformers': " + "; ".join(f"{n} {d:.0e}" for n, d in apart.items()))
    return alternating.times({name: partial(run, pixels) for name, run in ways.items()}, rounds)


def _resident(field: str) -> float:
    """Return this process's memory according to its status file [MB]."""
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) / 1024


def extra_memory(run: Callable[[Tensor], Any], size: int) -> float:
    """Return the additional peak memory of a pass [MB]; call it in a fresh process."""
    run(torch.zeros(1, 3, 64, 64))  # libraries make their one-time allocations here
    pixels = torch.randn(1, 3, size, size)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = _resident("VmRSS")
    result = run(pixels)
    peak = _resident("VmHWM")
    del result
    return peak - before


def measured_memory(size: int, way: str) -> float | None:
    """Measure `extra_memory` in a fresh process; return None if that fails, for example without enough memory."""
    if way == THEIRS and size >= 1024 and memory()[1] < 13e9:
        return None
    command = [sys.executable, __file__, "--memory-of", way, "--sizes", str(size)]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    return float(result.stdout) if result.returncode == 0 else None


def main() -> None:
    """Measure time and memory of each side at each size, and print the ratios."""
    parser = alternating.parser(__doc__, "15, 7 and 3")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(ROUNDS), help="[px]")
    parser.add_argument("--skip", choices=("time", "memory"))
    parser.add_argument("--memory-of", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        torch.set_num_threads(options.threads)
        with torch.inference_mode():
            print(extra_memory(passes((options.memory_of,))[options.memory_of], options.sizes[0]))
        return
    print("ViT-B/16, one picture, ", end="")
    alternating.start(options.threads)
    for size in options.sizes:
        if options.skip != "time":
            taken = times(size, options.rounds or ROUNDS.get(size, 5))
            for way, seconds in taken.items():
                ratios = alternating.spread(alternating.ratios(seconds, taken[THEIRS]))
                print(f"{way:<46} time   {statistics.median(seconds):8.2f} s   {ratios}", flush=True)
        if options.skip != "memory":
            most = {way: measured_memory(size, way) for way in WAYS}
            for way, extra in most.items():
                base = most[THEIRS]
                words = "not measured: too little memory is free" if extra is None else f"{extra:8,.0f} MB"
                ratio = f"  {extra / base:.3f}" if extra is not None and base else ""
                print(f"{way:<46} memory {words}{ratio}", flush=True)


if __name__ == "__main__":
    main()
