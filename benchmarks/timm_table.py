"""Check that every Vision Transformer of timm gives equal outputs here or is refused; print one line for each.

    python benchmarks/timm_table.py             # 20 minutes on 2 cores
    python benchmarks/timm_table.py eva02 _rpn_ # architectures whose name contains one of these

Each model has two blocks and random parameters, and is saved under a meaningless name, without config.json. For
hierarchical and convolutional networks only names and shapes of the tensors are passed to the loader, because it
refuses them by these.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from vit.checkpoints import recognition
from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.load import load_checkpoint
from vit.errors import InvalidCheckpoint

PLAIN = (
    "vision_transformer", "deit", "eva", "beit", "vision_transformer_relpos", "vision_transformer_sam", "naflexvit",
)  # fmt: skip
OTHERS = (
    "vision_transformer_hybrid", "cait", "coat", "convit", "crossvit", "davit", "deepseek_vit", "efficientformer",
    "efficientvit_mit", "gcvit", "gemma4_vit", "hiera", "levit", "maxxvit", "mobilevit", "mvitv2", "nest", "nextvit",
    "pit", "pvt_v2", "qwen3_vit", "swin_transformer", "swin_transformer_v2", "swin_transformer_v2_cr", "tiny_vit",
    "tnt", "twins", "visformer", "vitamin", "volo", "xcit",
)  # fmt: skip
MODEST = 1100  # patches
EQUAL = 1e-5
ACTIVATION = 2e-2  # a wrong GELU variant changes less; wrong positions or a wrong order of layers change more


class Verdict(NamedTuple):
    """The result for one architecture.

    Attributes:
        word: "equal", "assumed" (equal except for the activation, which the loader lists as assumed), "refused" or
            "WRONG".
        why: differences of logits and attention, or the error message.
    """

    word: str
    why: str


def fill(model: nn.Module) -> nn.Module:
    """Fill every parameter with random numbers of a magnitude as in trained models."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        matrix = parameter.ndim > 1 and name.endswith("weight")
        scale = parameter[0].numel() ** -0.5 if matrix else 0.2
        centre = 1 if parameter.ndim == 1 and name.endswith(("weight", "gamma", "gamma_1", "gamma_2")) else 0
        parameter.data.copy_(centre + scale * noise)
    return model.eval()


def answer(model: nn.Module, images: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return timm's logits, and the attention of every block."""
    attentions: list[Tensor] = []
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
        if hasattr(module, "attn_drop"):
            module.attn_drop.register_forward_hook(lambda _, __, out: attentions.append(out))
    return model(images), attentions


def build(name: str) -> nn.Module:
    """Create the architecture with two blocks, and with smaller pictures if there would be very many patches."""
    config = timm.get_pretrained_cfg(name)
    height, width = config.input_size[1:]
    patch = 14 if "patch14" in name else 16
    rows, cols = height // patch, width // patch
    small = {} if rows * cols <= MODEST else {"img_size": (rows // 2 * patch, cols // 2 * patch)}
    return timm.create_model(name, depth=2, **small)


@torch.inference_mode()
def compare_architecture(name: str, folder: Path) -> Verdict:
    """Save the architecture under a meaningless name, open it, and compare the outputs."""
    try:
        model = fill(build(name))
    except (TypeError, AssertionError):  # its blocks differ, so their number cannot be changed
        return refused_by_names(name)
    path = folder / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path)
    try:
        checkpoint = load_checkpoint(path)
    except InvalidCheckpoint as error:
        return Verdict("refused", str(error))
    size = getattr(model.patch_embed, "img_size", None) or checkpoint.config.image_size
    images = torch.randn(1, checkpoint.config.channels, *size, generator=torch.Generator().manual_seed(1))
    expected, attentions = answer(model, images)
    patch = checkpoint.config.patch_size  # timm's convolution ignores what is left: 384 px in patches of 14
    rows, cols = (side // patch * patch for side in size)
    found = checkpoint.model(images[..., :rows, :cols], output_attentions=True)
    shapes = [[one.shape for one in (result, *maps)] for result, maps in ((expected, attentions), found[:2])]
    if shapes[0] != shapes[1]:
        return Verdict("WRONG", "logits or attention have another shape")
    logits = float((expected - found.logits).abs().max() / expected.abs().max())
    maps = max(float((a - b).abs().max()) for a, b in zip(attentions, found.attentions, strict=True))
    return compare_numbers(checkpoint, logits=logits, attention=maps)


def compare_numbers(checkpoint: Checkpoint, **differences: float) -> Verdict:
    """Return the verdict on the differences of an opened model's outputs."""
    why = ", ".join(f"{what} {difference:.1e}" for what, difference in differences.items())
    if max(differences.values()) <= EQUAL:
        return Verdict("equal", why)
    if "activation" in checkpoint.assumed and max(differences.values()) <= ACTIVATION:
        return Verdict("assumed", f"{why}: {checkpoint.assumed['activation']}")
    return Verdict("WRONG", why)


def refused_by_names(name: str) -> Verdict:
    """Pass only names and shapes of an architecture's tensors to the loader."""
    with torch.device("meta"):
        model = timm.create_model(name)
    try:
        reading = recognition.read(dict(model.state_dict()), name="model.safetensors")
    except InvalidCheckpoint as error:
        return Verdict("refused", str(error))
    return Verdict("WRONG", f"opened as {reading.family.name}")


def main(parts: list[str]) -> None:
    """Print one line per architecture, and the number of each verdict."""
    counts = Counter[str]()
    names = [name for name in timm.list_models() if not parts or any(part in name for part in parts)]
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            module = timm.model_entrypoint(name).__module__.rpartition(".")[2]
            if module in PLAIN + OTHERS:
                verdict = compare_architecture(name, Path(folder)) if module in PLAIN else refused_by_names(name)
                counts[verdict.word] += 1
                print(f"{name:45} {verdict.word:8} {verdict.why}", flush=True)
    print(", ".join(f"{count} {word}" for word, count in counts.most_common()))


if __name__ == "__main__":
    main(sys.argv[1:])
