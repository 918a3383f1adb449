"""Convert a checkpoint for another library: transformers, timm, torchvision or an ONNX runtime.

A conversion is refused unless the other library computes the same. Results agree at the size that the checkpoint's
preprocessing produces. Libraries interpolate positions differently for other sizes. If the training size differs,
positions are therefore interpolated before they are written, unless the library interpolates in the same way.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import torch

from vit.checkpoints import onnx_export
from vit.checkpoints.card import write_card
from vit.checkpoints.checkpoint import CARD, CONFIG, PREPROCESS, WEIGHTS, Checkpoint
from vit.checkpoints.families import clip, dinov2, dinov3, huggingface, siglip, timm, torchvision
from vit.checkpoints.families.target import ConvertedModel, Target
from vit.checkpoints.formats.json_documents import dump_json
from vit.checkpoints.save import safetensors_pieces, save_checkpoint
from vit.errors import UserError
from vit.files import replaced
from vit.model.positions import positions_at
from vit.model.transformer import VisionTransformer
from vit.untrusted import brief

To = Literal["transformers", "timm", "torchvision", "onnx"]

# In order of preference: the first class that computes the same model is used.
TARGETS: Mapping[str, tuple[Target, ...]] = {
    "transformers": (
        *huggingface.TARGETS,
        *clip.TARGETS,
        *siglip.TARGETS,
        *dinov2.TARGETS,
        *dinov3.TARGETS,
    ),
    "timm": timm.TARGETS,
    "torchvision": torchvision.TARGETS,
}
SUFFIXES: Mapping[str, tuple[str, ...]] = {"torchvision": (".pth", ".pt"), "onnx": (".onnx",)}  # others: folders


def convert(checkpoint: Checkpoint, destination: str | Path, to: To = "transformers") -> Path:
    """Write a checkpoint so that another library opens it and computes the same logits and attention.

        transformers  a folder for `from_pretrained`, `AutoImageProcessor` and `pipeline`; our own format too
        timm          a folder for `timm.create_model("local-dir:...", pretrained=True)`, which transformers opens too
        torchvision   a .pth file, the state_dict of `torchvision.models.VisionTransformer`; it has no labels,
                      no preprocessing, no number of heads, and does not say whether a picture may have several classes
        onnx          an .onnx file: images (B, C, height, width), any B, to logits and attention_0, attention_1, ...
                      (B, H, N, N); labels, preprocessing and config as JSON in its metadata

    Existing files are never overwritten, and the output appears only when it is complete.

    Args:
        destination: a folder or file that does not exist yet, or an empty folder.

    Returns:
        The absolute path of the output.

    Raises:
        UserError: the library has no class that computes this model, the destination exists, or the disk is full or
            read-only.
    """
    if problem := obstacle(checkpoint, to):
        raise UserError(problem)
    path = _destination(destination, to)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if to == "onnx":
            onnx_export.write(checkpoint, _at_size(checkpoint.model, _export_size(checkpoint, None)), path)
        elif to == "torchvision":
            _write_torch(checkpoint, path)
        else:
            _write_folder(checkpoint, path, to)
    except OSError as error:
        raise UserError(f"{brief(path.name)!r} was not written: {error.strerror}.") from error
    return path


def obstacle(checkpoint: Checkpoint, to: To) -> str:
    """Return why a checkpoint cannot be converted for a library, in one or two sentences; "" if it can.

    Raises:
        UserError: unknown format.
    """
    if to not in get_args(To):
        raise UserError(f"There is no format {to!r}. Choose from: {', '.join(get_args(To))}.")
    if to == "onnx":
        return onnx_export.obstacle(checkpoint)
    target = _choose_target(checkpoint, to)
    problems = _all_obstacles(checkpoint, target)
    if not problems:
        return ""
    others = [
        other for other in TARGETS if other != to and not _all_obstacles(checkpoint, _choose_target(checkpoint, other))
    ]
    others += [] if onnx_export.obstacle(checkpoint) else ["onnx"]
    return (
        f"{to} has no class that computes exactly what {brief(checkpoint.name)!r} does. The nearest is {target.name}, "
        f"but {', '.join(problems)}." + (f" Choose {' or '.join(others)} instead." if others else "")
    )


def how_to_open(checkpoint: Checkpoint, path: Path, to: To) -> list[str]:
    """Return lines of Python that open the output of `convert`."""
    name = json.dumps(path.as_posix())
    if to == "onnx":
        return [
            "import onnxruntime",
            f"session = onnxruntime.InferenceSession({name})",
            'logits, *attentions = session.run(None, {"images": pixels})  # float32, '
            f"(B, {checkpoint.config.channels}, {', '.join(map(str, checkpoint.preprocess.size))})",
        ]
    target = _choose_target(checkpoint, to)
    if to == "torchvision":
        stated = ", ".join(f"{key}={value}" for key, value in _write_tensors(checkpoint, to).document.items())
        return [
            "import torch, torchvision",
            f"model = torchvision.models.VisionTransformer({stated})",
            f"model.load_state_dict(torch.load({name}))",
        ]
    if to == "timm":
        return [
            "import timm",
            f"model = timm.create_model({json.dumps('local-dir:' + path.as_posix())}, pretrained=True).eval()",
            "settings = timm.data.resolve_model_data_config(model)",
            "transform = timm.data.create_transform(**settings, is_training=False)",
        ]
    return [
        f"from transformers import AutoImageProcessor, {target.name}",
        f"processor = AutoImageProcessor.from_pretrained({name})",
        f'model = {target.name}.from_pretrained({name}, attn_implementation="eager")',
        "# eager: with transformers' default, output_attentions=True gives nothing",
    ]


# --- What fits ------------------------------------------------------------------------------------------------


def _choose_target(checkpoint: Checkpoint, to: str) -> Target:
    """Return the class with the fewest obstacles; at a tie, prefer one whose obstacle is not the prefix tokens."""

    def distance(target: Target) -> tuple[int, bool]:
        problems = _all_obstacles(checkpoint, target)
        return len(problems), any(problem.startswith("its prefix") for problem in problems)

    return min(TARGETS[to], key=distance)


def _all_obstacles(checkpoint: Checkpoint, target: Target) -> tuple[str, ...]:
    config = replace(checkpoint.config, image_size=_export_size(checkpoint, target))
    problems = target.obstacles(config, checkpoint.model.state_dict(), checkpoint.preprocess)
    covers = checkpoint.preprocess.resize == "cover" and target in TARGETS["transformers"]
    return (*problems, "its pictures are resized to cover a rectangle") if covers else problems


def _export_size(checkpoint: Checkpoint, target: Target | None) -> tuple[int, int]:
    """Return the size (height, width) [px] whose positions are written."""
    config = checkpoint.config
    keeps = target is not None and (target.resizes == config.position_resize or target in torchvision.TARGETS)
    return config.image_size if keeps or config.rope is not None else checkpoint.preprocess.size


def _write_tensors(checkpoint: Checkpoint, to: str) -> ConvertedModel:
    target = _choose_target(checkpoint, to)
    model = _at_size(checkpoint.model, _export_size(checkpoint, target))
    return target.write(model.config, dict(model.state_dict()), checkpoint.labels, checkpoint.preprocess)


def _at_size(model: VisionTransformer, size: tuple[int, int]) -> VisionTransformer:
    """Return the model in float32 with positions interpolated to another size, as its forward pass would do."""
    config = model.config
    if size == config.image_size and all(tensor.dtype == torch.float32 for tensor in model.state_dict().values()):
        return model
    other = replace(config, image_size=size)
    tensors = positions_at({name: tensor.float() for name, tensor in model.state_dict().items()}, config, other.grid)
    with torch.device("meta"):
        twin = VisionTransformer(other)
    twin.load_state_dict(tensors, assign=True)
    return twin.eval()


# --- Destinations ---------------------------------------------------------------------------------------------


def _destination(destination: str | Path, to: To) -> Path:
    """Return the absolute path, after checking that it suits the format and is free."""
    path = Path(os.path.abspath(destination))
    suffixes = SUFFIXES.get(to, ())
    if suffixes and path.suffix not in suffixes:
        raise UserError(f"For {to} one file is written: end its name in {' or '.join(suffixes)}, not {path.name!r}.")
    if not suffixes and path.suffix in {suffix for group in SUFFIXES.values() for suffix in group}:
        raise UserError(f"For {to} a folder is written; {path.name!r} is the name of a file.")
    try:
        empty = not suffixes and path.is_dir() and not path.is_symlink() and not os.listdir(path)
        taken = os.path.lexists(path) and not empty
    except OSError as error:
        raise UserError(f"{brief(path.name)!r} cannot be written: {error.strerror}.") from error
    if taken:
        raise UserError(f"{brief(path.name)!r} exists already and is left as it is. Choose a new name.")
    return path


def _write_folder(checkpoint: Checkpoint, path: Path, to: To) -> None:
    target = _choose_target(checkpoint, to)
    model, labels, preprocess = (
        _at_size(checkpoint.model, _export_size(checkpoint, target)),
        checkpoint.labels,
        checkpoint.preprocess,
    )
    config, facts = model.config, dict(checkpoint.facts)
    facts["converted_from"] = (
        f"{checkpoint.name}, SHA-256 of its weights {checkpoint.hash}..., identity {checkpoint.identity}"
    )
    if checkpoint.assumed:
        facts["assumed"] = dict(checkpoint.assumed)
    if config.image_size != checkpoint.config.image_size:
        sizes = (" x ".join(map(str, grid)) for grid in (checkpoint.config.grid, config.grid))
        facts["positions"] = "interpolated from {} to {} patches".format(*sizes)
    foreign = checkpoint.card if checkpoint.card and not checkpoint.facts else None  # the authors' card, with licence
    if target is huggingface.PLAIN_VIT:  # our own format
        save_checkpoint(path, model, labels, preprocess, facts, foreign)
        return
    facts.setdefault("params", sum(tensor.numel() for tensor in model.state_dict().values()))
    usage = [f"    {line}" for line in how_to_open(checkpoint, Path(path.name), to)]
    if config.rope is None and target.resizes != config.position_resize:
        usage += ["", f"At another size {to} interpolates positions in its own way, or not at all."]
    written = target.write(config, dict(model.state_dict()), labels, preprocess)
    document = written.document | {"training": facts}
    with _atomic_folder(path) as folder:
        (folder / CONFIG).write_text(dump_json(document, indent=2))
        (folder / CARD).write_text(foreign or write_card(path.name, config, labels, facts, usage))
        if to == "transformers":
            (folder / PREPROCESS).write_text(dump_json(preprocess.to_config(), indent=2))
        with (folder / WEIGHTS).open("xb") as file:
            file.writelines(safetensors_pieces(written.tensors, {"format": "pt"}))


@contextmanager
def _atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `path` once it is complete and synced to disk."""
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield temporary
        # The umask can only be read by setting it.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o777 & ~mask)  # mkdtemp creates folders that only the owner can read
        for each in (*temporary.iterdir(), temporary):
            descriptor = os.open(each, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        os.rename(temporary, path)  # fails if a non-empty folder exists there
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    descriptor = os.open(path.parent, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _write_torch(checkpoint: Checkpoint, path: Path) -> None:
    tensors = _write_tensors(checkpoint, "torchvision").tensors
    try:
        with replaced(path) as file:
            torch.save(tensors, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # torch.save raises its own error if writing fails
            raise error.__context__ from error
        raise
