"""Fine-tuning options of a model: frozen parts, low-rank adapters, layer-wise learning rate decay.

Source of the adapters: Hu et al. 2021, "LoRA", arXiv 2106.09685, section 4.1. Layer-wise decay: Clark et al. 2020,
ELECTRA, arXiv 2003.10555, appendix A; for ViTs Bao et al. 2021, BEiT, arXiv 2106.08254.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vit.model.attention import Attention
from vit.model.transformer import VisionTransformer
from vit.training.loop.config import BACKBONE, TrainConfig


class LowRank(nn.Module):
    """A frozen matrix (out, in) plus a trainable low-rank product, which is zero at first."""

    def __init__(self, weight: Tensor, rank: int):
        super().__init__()
        out, into = weight.shape
        self.down = nn.Parameter(torch.randn(rank, into) * into**-0.5)
        self.up = nn.Parameter(torch.zeros(out, rank))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the effective matrix, of the same shape."""
        return weight + self.up @ self.down


def adapt_(model: VisionTransformer, config: TrainConfig) -> None:
    """Freeze parameters and add adapters, in place; the head is always trained.

    Raises:
        ValueError: `config.freeze` names more blocks than the model has.
    """
    if not (config.freeze or config.lora_rank):
        return
    learning: list[nn.Module] = [model.head]
    if config.freeze not in ("", BACKBONE):
        count = int(config.freeze.partition(":")[2])
        if count > len(model.blocks):
            raise ValueError(f"freeze: the model has {len(model.blocks)} blocks, so its last {count} cannot learn.")
        learning += [*model.blocks[-count:], model.norm, *([model.pool] if model.pool is not None else [])]
    model.requires_grad_(False)
    for module in learning:
        module.requires_grad_(True)
    if config.lora_rank:
        for module in model.modules():
            if isinstance(module, Attention):
                for linear in (module.qkv, module.proj):
                    parametrize.register_parametrization(linear, "weight", LowRank(linear.weight, config.lora_rank))


def merged(model: VisionTransformer) -> VisionTransformer:
    """Return the model with its adapters merged into plain matrices; a model without adapters is returned itself.

    It builds a new model: copies of a parametrized module share a class, and removing the parametrization from one
    would change it for both.
    """
    adapted = {name for name, module in model.named_modules() if parametrize.is_parametrized(module)}
    if not adapted:
        return model
    state = {name: tensor for name, tensor in model.state_dict().items() if ".parametrizations." not in name}
    state |= {f"{name}.weight": cast(Tensor, model.get_submodule(name).weight).detach() for name in adapted}
    with torch.device("meta"):
        plain = VisionTransformer(model.config)
    plain.load_state_dict(state, assign=True)
    return plain.requires_grad_(False).train(model.training)


def rate_share(name: str, blocks: int, decay: float) -> float:
    """Return a parameter's share of the learning rate: 1 for the head, multiplied by `decay` for each block below it.

    Args:
        name: name of the parameter.
        blocks: number of the model's blocks.
        decay: factor per block.

    >>> [rate_share(name, 2, 0.5) for name in ("head.weight", "norm.bias", "blocks.1.scale1", "blocks.0.scale1")]
    [1.0, 1.0, 0.5, 0.25]
    >>> rate_share("pos_embed", 2, 0.5)
    0.125
    """
    first, _, rest = name.partition(".")
    if first == "blocks":
        return decay ** (blocks - int(rest.partition(".")[0]))
    below = first in ("patch_embed", "pos_embed", "prefix_tokens", "norm_pre")
    return decay ** (blocks + 1) if below else 1.0
