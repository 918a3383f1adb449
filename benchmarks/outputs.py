"""Hash the project's outputs, to prove that a refactor changes none of them.

    python benchmarks/outputs.py before.json
    ... the change ...
    python benchmarks/outputs.py after.json --against before.json

The outputs are the weights of a seeded run, maps of every method, payloads, figures, exports, conversions and
statistics. Compare only results of one machine and one version of torch, because the last digits of sums depend on
both. The exit status is 1 if a hash differs.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # fixes the order of sums
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

import vit
from vit.cli.main import main as command
from vit.explain.methods import METHODS, weights
from vit.explain.recorded_pass import RecordedPass
from vit.exports import animation, arrays, code_snippet, figures, map_pictures
from vit.images import samples
from vit.view import map_view
from vit.view.explanation import explain
from vit.view.selection import Selection
from vit.view.standalone_page import standalone

RUN = ["limit=600", "epochs=2", "dropout=0.1", "device=cpu", "compile=false"]
POOLS = ("cls", "mean", "map")


def digest(content: bytes | str | np.ndarray) -> str:
    if isinstance(content, np.ndarray):
        content = str((content.dtype, content.shape)).encode() + np.ascontiguousarray(content).tobytes()
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


def run(*words: object) -> str:
    """Run a command and return its output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert command([str(word) for word in words]) == 0, words
    return out.getvalue()


def without_times(told: str) -> str:
    """Return JSON without the fields that differ from run to run."""
    return json.dumps({k: v for k, v in json.loads(told).items() if "second" not in k}, sort_keys=True)


def training_outputs(folder: Path) -> dict[str, str]:
    run("train", "--preset", "shapes", "--run-dir", folder / "run", "--set", *RUN)
    result = {"weights of a run": (folder / "run/checkpoints/best/model.safetensors").read_bytes()}
    result |= {f"probes of epoch {file.stem}": file.read_bytes() for file in sorted((folder / "run/probes").iterdir())}
    return {name: digest(content) for name, content in result.items()}


def small(pool: str, folder: Path) -> Path:
    """Save a checkpoint with every parameter random."""
    torch.manual_seed(0)
    config = vit.ViTConfig(
        image_size=(32, 32), patch_size=8, num_classes=5, dim=64, depth=2, heads=2, mlp_dim=128, pool=pool,
        prefix=("cls",) if pool == "cls" else (),
    )  # fmt: skip
    model = vit.VisionTransformer(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return vit.save_checkpoint(folder / pool, model, list("abcde"), vit.Preprocess((32, 32)))


def map_outputs(checkpoint: str | Path, folder: Path, name: str) -> dict[str, str]:
    """Hash the maps of every method, computed on the command line."""
    picture, result = folder / "cat.jpg", {}
    picture.write_bytes(samples.read("cat"))
    for method in METHODS:
        for kind in ("npz", "png"):
            out = folder / f"map.{kind}"
            run("explain", picture, "--method", method, "--checkpoint", checkpoint, "--out", out)
            if kind == "png":
                result[f"{name}, {method}, png"] = digest(out.read_bytes())
                continue
            with np.load(out) as arrays:
                result |= {f"{name}, {method}, {key}": digest(arrays[key]) for key in arrays.files if key != "meta"}
    output = run("classify", picture, "--checkpoint", checkpoint, "--json")
    result[f"{name}, classes"] = digest(output.replace(str(folder), ""))
    return result


def of_views(folder: Path) -> dict[str, str]:
    """Hash the payloads and exports of the page."""
    checkpoint, result = vit.load_checkpoint("cifar10"), {}
    for side in (32, 64):
        seen = explain(checkpoint, samples.read("cat"), (side, side))
        result[f"payload at {side} px"] = seen.payload
        for selection in (Selection(block=2, head=1, token=30), Selection(view="rollout", token=12, smooth=True)):
            view = map_view.MapView.of(seen.record, selection, seen.payload)
            name = f"{selection.view} at {side} px"
            facts = figures.caption(seen, checkpoint, view.sentence)
            result |= {
                f"{name}, picture to share": figures.shared_picture(seen, selection, checkpoint, view),
                f"{name}, heads": map_pictures.grid_png(seen, selection),
                f"{name}, npz": arrays.view_npz(seen, selection, checkpoint, view),
                f"{name}, code": code_snippet.snippet(seen, checkpoint, view.facts, sample="cat"),
                f"{name}, page": standalone(seen.payload, selection, "cat"),
            }
            for kind in ("png", "svg", "pdf"):
                result[f"{name}, figure as {kind}"] = figures.map_figure(seen, selection, view, facts, kind=kind)
                result[f"{name}, heads as {kind}"] = figures.grid_figure(seen, selection, facts, kind=kind)
        result[f"film at {side} px"] = animation.encode(animation.over_blocks(seen, Selection(token=30)), "GIF")
    recorded = RecordedPass.of_class(checkpoint.model, checkpoint.preprocess(vit.decode_image(samples.read("cat"))), 3)
    result |= {f"{name} in Python": weights(recorded, name).numpy() for name in METHODS if METHODS[name].of_class}
    return {name: digest(content) for name, content in result.items()}


def of_measurements(folder: Path) -> dict[str, str]:
    few = ("--checkpoint", folder / "run/checkpoints/best", "--data", "shapes", "--limit", 6, "--json")
    return {name: digest(without_times(run(name, *few))) for name in ("heads", "faithfulness")}


def of_conversions(folder: Path) -> dict[str, str]:
    result = {}
    for to in ("transformers", "timm"):
        run("convert", "cifar10", folder / to, "--to", to)
        result |= {f"for {to}, {file.name}": digest(file.read_bytes()) for file in sorted((folder / to).iterdir())}
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        result = training_outputs(folder) | map_outputs("cifar10", folder, "cifar10")
        for pool in POOLS:
            result |= map_outputs(small(pool, folder), folder, f"pool {pool}")
        result |= of_views(folder) | of_measurements(folder) | of_conversions(folder)
    options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False))
    print(f"{len(result)} outputs")
    if not options.against:
        return 0
    before = json.loads(options.against.read_text())
    differ = [name for name in before.keys() | result.keys() if before.get(name) != result.get(name)]
    for name in sorted(differ):
        print(f"{before.get(name, 'not there')} -> {result.get(name, 'not there')}  {name}")
    print(f"{len(differ)} differ")
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
