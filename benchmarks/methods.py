"""Compare maps with those of libraries that define the same map: time, and largest difference.

    pip install torchcam grad-cam torchxai-explain fast-vit-rollout lxt    # a library that is missing is skipped
    python benchmarks/methods.py

Ours and theirs alternate in one process, with a ViT-B/16 of random weights at 224 px. A ratio is that of consecutive
timings; passes are plain forward passes of our model. Maps are divided by their maximum before they are compared.
"""

import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import alternating
from vit.checkpoints.modules.in_memory import checkpoint_from_module
from vit.explain.heatmap import run_model
from vit.explain.methods import heatmap_of

TARGET = 7


def of_timm() -> Any:
    model = timm.create_model("vit_base_patch16_224")
    for block in model.blocks:
        block.attn.fused_attn = False  # else no hook sees the attention
    return model


def spatial(tokens: torch.Tensor) -> torch.Tensor:
    return tokens[:, 1:].transpose(1, 2).unflatten(2, (14, 14))


def fast_vit_rollout(model: Any, pixels: torch.Tensor) -> Any:
    from fast_vit_rollout import ViTAttentionRollout

    rollout = ViTAttentionRollout(model, discard_ratio=0.0)
    return lambda: rollout(pixels)[0, 0, 1:]


def torchxai(model: Any, pixels: torch.Tensor) -> Any:
    from torchxai.methods.attention_rollout import AttentionRollout

    rollout = AttentionRollout(model, head_fusion="mean", discard_ratio=0.0)
    return lambda: torch.as_tensor(rollout._compute_cam(pixels, None))


def grad_cam(model: Any, pixels: torch.Tensor) -> Any:
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    cam = GradCAM(model, [model.blocks[-1].norm1], reshape_transform=spatial)

    def run() -> torch.Tensor:
        cam(pixels, [ClassifierOutputTarget(TARGET)])
        sides = cam.activations_and_grads.activations[0].numpy(), cam.activations_and_grads.gradients[0].numpy()
        return torch.as_tensor(cam.get_cam_image(pixels, None, None, *sides)).clamp(min=0)  # before it is enlarged

    return run


def torchcam(model: Any, pixels: torch.Tensor) -> Any:
    from torchcam.methods import GradCAM, LeGrad

    if isinstance(model, torchvision.models.VisionTransformer):
        cam = LeGrad(model, list(model.encoder.layers))
    else:
        cam = GradCAM(model, model.blocks[-1].norm1, reshape_transform=spatial)
    return lambda: cam(TARGET, model(pixels), normalized=False)[0]


def lxt(model: Any, pixels: torch.Tensor) -> Any:
    # Its package imports what transformers 5 does not have, for language models.
    sys.modules["lxt.efficient.models"] = types.SimpleNamespace(get_default_map=None)  # type: ignore[assignment]
    from lxt.efficient import patches
    from transformers.models.vit import modeling_vit

    attend = patches.wrap_attention_forward(modeling_vit.eager_attention_forward)
    modeling_vit.ALL_ATTENTION_FUNCTIONS.register("lxt", attend)
    model.config._attn_implementation = "lxt"
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.forward = partial(patches.layer_norm_forward, module)
        elif "GELU" in type(module).__name__:
            module.original_forward, module.forward = module.forward, partial(patches.non_linear_forward, module)

    def run() -> torch.Tensor:
        tokens: list[torch.Tensor] = []
        hook = model.vit.embeddings.register_forward_hook(lambda *call: tokens.append(call[2]))
        (gradient,) = torch.autograd.grad(model(pixels).logits[0, TARGET], tokens)
        hook.remove()
        return (tokens[0] * gradient).sum(-1)[0, 1:].detach()

    return run


def main() -> None:
    options = alternating.parser(__doc__).parse_args()
    alternating.start(options.threads)
    pixels = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    of_transformers = partial(transformers.ViTForImageClassification, transformers.ViTConfig(num_labels=1000))
    for method, peer, build in (
        ("rollout", fast_vit_rollout, of_timm),
        ("rollout", torchxai, of_timm),
        ("gradcam", grad_cam, of_timm),
        ("gradcam", torchcam, of_timm),
        ("legrad", torchcam, torchvision.models.vit_b_16),
        ("attnlrp", lxt, of_transformers),
    ):
        torch.manual_seed(0)
        model = build().eval()
        for parameter in model.parameters():  # none of them stays 0 or 1
            parameter.data += 0.03 * torch.randn_like(parameter)
        checkpoint = checkpoint_from_module(model)
        try:
            theirs = peer(model, pixels)
        except ModuleNotFoundError as error:
            print(f"{method} of {peer.__name__} is skipped: {error}. See --help for what to install.")
            continue
        ours = partial(
            lambda checkpoint, name: heatmap_of(run_model(checkpoint, pixels, name, TARGET), name), checkpoint
        )
        one, other = (map_.double().flatten() / map_.max() for map_ in (ours(method), theirs()))
        forward = torch.inference_mode()(partial(checkpoint.model, pixels))
        ways = {"ours": partial(ours, method), "theirs": theirs, "forward": forward}
        times = alternating.times(ways, options.rounds or 15)
        ratio, *passes = (
            alternating.spread(alternating.ratios(times[a], times[b]))
            for a, b in (("ours", "theirs"), ("ours", "forward"), ("theirs", "forward"))
        )
        print(f"{method} of {peer.__name__}: ours / theirs {ratio}; passes {' and '.join(passes)}", end="; ")
        print(f"difference {float((one - other).abs().max()):.1e}", flush=True)


if __name__ == "__main__":
    main()
