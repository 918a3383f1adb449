"""Small random models of every architecture in transformers that sees pictures, and their outputs beside ours."""

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import transformers
from tiny import fill
from torch import Tensor, nn
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from vit.checkpoints import recognition
from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.load import load_checkpoint
from vit.errors import InvalidCheckpoint

LARGE = 50_000_000  # parameters
# Small values by the names of fields; the first match counts. A width of 192 usually has 3 heads.
SMALL = {
    r"(num_|n_)?(\w+_)?(hidden_layers|layers|depth)": 2,
    r"(num_|n_)?(\w+_)?heads": 3,
    r"(hidden|embed)_(size|dim)|(d_)?model|width|out_hidden_size|projection_dim|output_dim": 192,
    r"(\w+_)?(intermediate_size|ffn_dim|mlp_dim)": 384,
    r"(image|input)_size": 32,
    r"patch_size": 8,
    r"\w+_token_(id|index)": 1,
    r"vocab_size": 1000,
}
UNUSUAL = {r"(num_)?attention_heads": 6, r"layer_?norm_eps": 3e-3, "hidden_act": "quick_gelu"}
# Fields that depend on the number of layers, and dictionaries that are no settings of a part.
DROPPED = ("out_features", "out_indices", "stage_names", "layer_types", "per_layer_config", "mlp_layer_types")
KEPT = ("id2label", "label2id", "rope_parameters", "rope_scaling")
Kind = type[transformers.PreTrainedModel]


class Verdict(NamedTuple):
    """The result for one file of one model.

    Attributes:
        word: "refused"; "opened"; "unbuilt" if transformers cannot build it here; "unchecked" if it was opened and its
            outputs could not be compared.
        why: the error, or what prevented the comparison.
        differences: of the outputs, by their names.
        checkpoint: if it was opened.
    """

    word: str
    why: str = ""
    differences: Mapping[str, float] = MappingProxyType({})
    checkpoint: Checkpoint | None = None


def shrunk(settings: dict[str, Any], unusual: bool) -> dict[str, Any]:
    """Return settings of a small model of the same kind, those of its parts included."""
    rules = {**(UNUSUAL if unusual and "patch_size" in settings else {}), **SMALL}

    def small(field: str, value: Any) -> Any:
        if isinstance(value, dict) and field not in KEPT:
            return shrunk(value, unusual)
        other = next((other for pattern, other in rules.items() if re.fullmatch(pattern, field)), None)
        return other if type(other) is type(value) else value

    return {field: small(field, value) for field, value in settings.items() if field not in DROPPED}


def classes(kind: str) -> list[Kind]:
    """Return transformers' classes of a `model_type` that read pictures and can be imported here."""
    found: dict[Any, None] = {}
    try:
        for mapping in (getattr(modeling_auto, name) for name in vars(modeling_auto) if name.endswith("_MAPPING")):
            made = mapping.get(CONFIG_MAPPING[kind], ())
            found |= dict.fromkeys(made if isinstance(made, tuple | list) else [made])
        return [one for one in found if "pixel_values" in inspect.signature(one.forward).parameters]
    except (ImportError, ValueError):  # a library that is not installed, or a class that transformers lacks
        return []


def build(kind: Kind, unusual: bool) -> nn.Module:
    """Create a small model; raises an error if its kind cannot be small."""
    config = kind.config_class(**shrunk(kind.config_class().to_dict(), unusual))
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in kind(config).parameters())
    if size > LARGE:
        raise ValueError(f"It has {size:,} parameters.")
    return fill(kind._from_config(config, attn_implementation="eager"))


def towers(model: nn.Module) -> list[nn.Module]:
    """Return the innermost modules with attention that take pictures."""
    seeing = [part for part in model.modules() if "pixel_values" in inspect.signature(part.forward).parameters]
    whole = [part for part in seeing if any("Attention" in type(inner).__name__ for inner in part.modules())]
    return [part for part in whole if not any(inner in whole for inner in list(part.modules())[1:])]


def answer(tower: nn.Module, images: Tensor) -> tuple[Tensor | None, list[Tensor], list[Tensor]]:
    """Return the logits if any, the attention of every block, and all further tensors that modules return."""
    attentions: list[Tensor] = []
    others: list[Tensor] = []

    def record(module: nn.Module, _: object, out: Any) -> None:
        for one in out.values() if isinstance(out, dict) else out if isinstance(out, tuple) else [out]:
            if not isinstance(one, Tensor) or any(one is other for other in attentions):
                continue
            attends = one.ndim == 4 and one.shape[2] == one.shape[3] and "Attention" in type(module).__name__
            (attentions if attends else others).append(one)

    handles = [module.register_forward_hook(record) for module in tower.modules()]
    more: dict[str, Any] = {"output_attentions": True}
    if "noise" in inspect.signature(tower.forward).parameters:  # MAE sorts the patches by it, and hides some
        tower.config.mask_ratio, more["noise"] = 0.0, torch.arange((images.shape[2] // 8) ** 2)[None].float()
    result = tower(pixel_values=images, **more)
    for handle in handles:
        handle.remove()
    return getattr(result, "logits", None), attentions, others


def nearest(one: Tensor, among: list[Tensor]) -> float:
    """Return the smallest relative difference to a tensor of the same shape; 9 without one."""
    same = [other for other in among if other.shape == one.shape]
    return min((float((one - other).abs().max() / one.abs().max()) for other in same), default=9.0)


def differences(checkpoint: Checkpoint, model: nn.Module) -> dict[str, float]:
    """Compare attention and the tokens, or the class token, after the last block; and the logits of a classifier."""
    config, compared = checkpoint.config, {"attention": 9.0}
    images = torch.randn(1, config.channels, *config.image_size, generator=torch.Generator().manual_seed(1))
    ours, details = (checkpoint.model(images, **{f"output_{what}": True}) for what in ("attentions", "queries_keys"))
    for tower in towers(model):
        logits, attentions, others = answer(tower, images)
        if [one.shape for one in attentions] != [one.shape for one in ours.attentions]:
            continue  # of another tower, such as that of SAM beside SigLIP
        first = [other[:, 0] if other.ndim == 3 else other for other in others]
        pairs = zip(attentions, ours.attentions, strict=True)
        compared = {
            "tokens": min(nearest(details.tokens, others), nearest(details.tokens[:, 0], first)),
            "attention": max(float((a - b).abs().max()) for a, b in pairs),
        }
        if checkpoint.labels and logits is not None:
            compared["logits"] = nearest(ours.logits, [logits])
    return compared


def save(model: Any, folder: Path, way: str) -> Path:
    """Save a model as a "folder", its weights "alone" as safetensors, or as ".bin"."""
    model.save_pretrained(folder / way)
    if way == "folder":
        return folder / way
    path = (folder / way / "model.safetensors").rename(folder / "x.safetensors")
    if way == ".bin":
        torch.save(transformers.modeling_utils.load_state_dict(path), path := folder / "x.bin")
    return path


@torch.inference_mode()
def verdicts(kind: Kind, folder: Path) -> Iterator[tuple[str, Verdict]]:
    """Save a model in each way, open it, and compare; of a model that cannot be small only names and shapes are read.

    The folder has unusual settings, which config.json states; weights alone have usual ones, which no file states.
    """
    for way in ("folder", "alone", ".bin"):
        try:
            model = build(kind, way == "folder")
            path = save(model, folder, way)
        except Exception as error:  # of any kind: settings do not fit together
            yield way, by_names(kind, way == "folder", f"{type(error).__name__}: {str(error)[:100]!r}")
            continue
        try:
            checkpoint = load_checkpoint(path)
        except InvalidCheckpoint as error:
            yield way, Verdict("refused", str(error))
            continue
        try:
            yield way, Verdict("opened", "", differences(checkpoint, model), checkpoint)
        except Exception as error:  # the tower takes other input
            yield way, Verdict("unchecked", f"{type(error).__name__}: {str(error)[:100]!r}", {}, checkpoint)


def by_names(kind: Kind, documented: bool, why: str) -> Verdict:
    """Read the names and shapes of a model of usual size."""
    try:
        config = kind.config_class()
        with torch.device("meta"):
            tensors = kind(config).state_dict()
    except Exception:  # transformers has no default for it
        return Verdict("unbuilt", why)
    try:
        recognition.read(dict(tensors), config.to_dict() if documented else None)
    except InvalidCheckpoint as error:
        return Verdict("refused", str(error))
    return Verdict("unchecked", why)
