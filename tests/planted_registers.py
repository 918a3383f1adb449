"""Plant neurons that write vectors of great norm into some patches, as large models develop them in training."""

from typing import Any

import torch
from torch import Tensor

PLANTED = ((1, 7), (1, 20))  # block and neuron
STRANGE = (3, 9)  # the patches of each neuron


@torch.no_grad()
def plant(model: Any, pixels: Tensor) -> None:
    """Edit the second block's MLP so that each neuron is active in one patch of this picture only."""
    x, steps = model.walk(pixels, every=True)
    x = steps[0](x)
    block, first = model.blocks[1], len(model.config.prefix)
    tokens = block.norm2((x + block.attn(block.norm1(x), steps[1].route))[0])  # input of the MLP
    for (_, neuron), patch in zip(PLANTED, STRANGE, strict=True):
        place = first + patch
        key = tokens[place] - tokens.mean(0)
        others = torch.cat([tokens[:place], tokens[place + 1 :]])
        middle = (float(tokens[place] @ key) + float((others @ key).max())) / 2
        block.mlp.fc1.weight[neuron], block.mlp.fc1.bias[neuron] = 9 * key, -9 * middle
        block.mlp.fc2.weight[:, neuron] = 20 * torch.randn(model.config.dim)
