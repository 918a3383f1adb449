"""Compare maps with those of other libraries that compute the same: their time, and the largest difference.

    pip install torchcam grad-cam torchxai-explain fast-vit-rollout lxt    # a library that is missing is skipped
    python benchmarks/methods.py

Ours and theirs alternate in one process, with one ViT-B/16 at 224 px of random weights. Times are in plain forward
passes of the model, with and without the classes' pass; a ratio is that of two consecutive timings, ours first. Maps
are divided by their maximum before they are compared.
"""

import sys
import types
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
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
Call = Callable[[], Any]


def randomised(model: torch.nn.Module) -> Any:
    """Return the model in evaluation mode with changed parameters, so that none of them is 0 or 1."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.03 * torch.randn_like(parameter)
    return model.eval()


def of_timm() -> Any:
    return randomised(timm.create_model("vit_base_patch16_224"))


def patches(tokens: torch.Tensor) -> torch.Tensor:
    """Reshape tokens (1, N, D) to (1, D, rows, cols)."""
    return tokens[:, 1:].transpose(1, 2).unflatten(2, (14, 14))


def fast_vit_rollout(pixels: torch.Tensor) -> tuple[Any, Call]:
    from fast_vit_rollout import ViTAttentionRollout

    model = of_timm()
    for block in model.blocks:
        block.attn.fused_attn = False
    rollout = ViTAttentionRollout(model, discard_ratio=0.0)
    return model, lambda: rollout(pixels)[0, 0, 1:]


def torchxai_rollout(pixels: torch.Tensor) -> tuple[Any, Call]:
    from torchxai.methods.attention_rollout import AttentionRollout

    model = of_timm()
    rollout = AttentionRollout(model, head_fusion="mean", discard_ratio=0.0)
    return model, lambda: rollout._compute_cam(pixels, None)


def torchxai_attribution(pixels: torch.Tensor) -> tuple[Any, Call]:
    from torchxai.methods.transformer_attribution import TransformerAttribution

    model = of_timm()
    attribution = TransformerAttribution(model)
    return model, lambda: attribution._compute_cam(pixels, TARGET)


def grad_cam(pixels: torch.Tensor) -> tuple[Any, Call]:
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    model = of_timm()
    cam = GradCAM(model, [model.blocks[-1].norm1], reshape_transform=patches)

    def run() -> torch.Tensor:
        cam(pixels, [ClassifierOutputTarget(TARGET)])
        kept = cam.activations_and_grads
        sides = (kept.activations[0].numpy(), kept.gradients[0].numpy())  # before the map is enlarged
        return torch.from_numpy(cam.get_cam_image(pixels, None, None, *sides)).clamp(min=0)

    return model, run


def torchcam_gradcam(pixels: torch.Tensor) -> tuple[Any, Call]:
    from torchcam.methods import GradCAM

    model = of_timm()
    cam = GradCAM(model, model.blocks[-1].norm1, reshape_transform=patches)
    return model, lambda: cam(TARGET, model(pixels), normalized=False)[0]


def torchcam_legrad(pixels: torch.Tensor) -> tuple[Any, Call]:
    from torchcam.methods import LeGrad

    model = randomised(torchvision.models.vit_b_16())
    cam = LeGrad(model, list(model.encoder.layers))
    return model, lambda: cam(TARGET, model(pixels), normalized=False)[0]


def lxt_attnlrp(pixels: torch.Tensor) -> tuple[Any, Call]:
    # Its package imports language models, which today's transformers lacks.
    sys.modules["lxt.efficient.models"] = types.SimpleNamespace(get_default_map=None)  # type: ignore[assignment]
    from lxt.efficient import patches as rules
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.vit.modeling_vit import eager_attention_forward

    config = transformers.ViTConfig(num_labels=1000)
    model = randomised(transformers.ViTForImageClassification(config))
    theirs = transformers.ViTForImageClassification(config).eval()
    theirs.load_state_dict(model.state_dict())
    ALL_ATTENTION_FUNCTIONS.register("lxt", rules.wrap_attention_forward(eager_attention_forward))
    theirs.config._attn_implementation = "lxt"
    for module in theirs.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.forward = partial(rules.layer_norm_forward, module)
        elif "GELU" in type(module).__name__:
            module.original_forward = module.forward
            module.forward = partial(rules.non_linear_forward, module)

    def run() -> torch.Tensor:
        embedded: list[torch.Tensor] = []
        hook = theirs.vit.embeddings.register_forward_hook(lambda *call: embedded.append(call[2].requires_grad_()))
        (gradient,) = torch.autograd.grad(theirs(pixels).logits[0, TARGET], embedded)
        hook.remove()
        return (embedded[0] * gradient).sum(-1)[0, 1:].detach()

    return model, run


PEERS = [  # library, package, our method, peer; and whether both define the same map
    ("fast-vit-rollout", "fast_vit_rollout", "rollout", fast_vit_rollout, True),
    ("torchxai-explain", "torchxai", "rollout", torchxai_rollout, True),
    ("torchcam", "torchcam", "gradcam", torchcam_gradcam, True),
    ("grad-cam", "pytorch_grad_cam", "gradcam", grad_cam, True),
    ("torchcam", "torchcam", "legrad", torchcam_legrad, True),
    ("torchxai-explain", "torchxai", "relevance", torchxai_attribution, False),
    ("lxt", "lxt", "attnlrp", lxt_attnlrp, True),
]


def main() -> None:
    options = alternating.parser(__doc__).parse_args()
    rounds = options.rounds or 15
    alternating.start(options.threads)
    pixels = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    for library, package, method, peer, same in PEERS:
        if not find_spec(package):
            print(f"{method}: {library} is missing: pip install {library}")
            continue
        model, theirs = peer(pixels)
        checkpoint = checkpoint_from_module(model)
        ours = lambda: heatmap_of(run_model(checkpoint, pixels, method, TARGET), method)  # noqa: B023, E731
        maps = [map_.double().flatten() / map_.max() for map_ in (ours(), torch.as_tensor(theirs()))]
        forward = torch.inference_mode()(partial(checkpoint.model, pixels))
        times = alternating.times({"ours": ours, "theirs": theirs, "forward": forward}, rounds)
        ratio, one, other = (
            alternating.spread(alternating.ratios(times[a], times[b]))
            for a, b in (("ours", "theirs"), ("ours", "forward"), ("theirs", "forward"))
        )
        difference = f"{float((maps[0] - maps[1]).abs().max()):.1e}" if same else "defined differently"
        print(f"{method:<10} {library:<17} ours/theirs {ratio}, in forwards {one} and {other}, difference {difference}")


if __name__ == "__main__":
    main()
