"""transformers' Dinov2 and Dinov2WithRegisters.

The classifier reads the class token and the mean of the patches side by side. Registers join after the positions
were added, so they have none.
"""

from dataclasses import replace

from vit.families.family import IMAGENET_MEAN, IMAGENET_STD, Family
from vit.families.huggingface import Kind, assumed, read_config
from vit.images import Preprocess
from vit.model import ViTConfig

KINDS = {"dinov2": Kind(1e-6, patch_size=14, mlp_dim=None)}
KINDS_REGISTERS = {"dinov2_with_registers": Kind(1e-6, mlp_dim=None, prefix=None)}

# ours, theirs after "dinov2." or "dinov2_with_registers."
KEYS = (
    ("patch_embed", "embeddings.patch_embeddings.projection"),
    ("prefix.cls", "embeddings.cls_token"),
    ("prefix.reg", "embeddings.register_tokens"),
    ("pos_embed", "embeddings.position_embeddings"),
    ("blocks.{i}.norm1", "encoder.layer.{i}.norm1"),
    ("blocks.{i}.attn.q", "encoder.layer.{i}.attention.attention.query"),
    ("blocks.{i}.attn.k", "encoder.layer.{i}.attention.attention.key"),
    ("blocks.{i}.attn.v", "encoder.layer.{i}.attention.attention.value"),
    ("blocks.{i}.attn.proj", "encoder.layer.{i}.attention.output.dense"),
    ("blocks.{i}.attn.q", "encoder.layer.{i}.attention.q_proj"),  # transformers 5, in memory
    ("blocks.{i}.attn.k", "encoder.layer.{i}.attention.k_proj"),
    ("blocks.{i}.attn.v", "encoder.layer.{i}.attention.v_proj"),
    ("blocks.{i}.attn.proj", "encoder.layer.{i}.attention.o_proj"),
    ("blocks.{i}.scale1", "encoder.layer.{i}.layer_scale1.lambda1"),
    ("blocks.{i}.norm2", "encoder.layer.{i}.norm2"),
    ("blocks.{i}.mlp.fc1", "encoder.layer.{i}.mlp.fc1"),
    ("blocks.{i}.mlp.fc2", "encoder.layer.{i}.mlp.fc2"),
    ("blocks.{i}.mlp.fc1", "encoder.layer.{i}.mlp.weights_in"),
    ("blocks.{i}.mlp.fc2", "encoder.layer.{i}.mlp.weights_out"),
    ("blocks.{i}.mlp.gate", "encoder.layer.{i}.mlp.gate_proj"),  # transformers 5, in memory
    ("blocks.{i}.mlp.up", "encoder.layer.{i}.mlp.up_proj"),
    ("blocks.{i}.mlp.fc2", "encoder.layer.{i}.mlp.down_proj"),
    ("blocks.{i}.scale2", "encoder.layer.{i}.layer_scale2.lambda1"),
    ("norm", "layernorm"),
    ("head", "classifier"),
)


def _preprocess(config: ViTConfig, file: str) -> tuple[Preprocess, str]:
    shorter = min(config.image_size) * 256 // 224
    why = (
        "The file does not state its preprocessing; DINOv2's is used: shorter side to "
        f"{shorter} px, the centre, bicubic, ImageNet's mean and deviation."
    )
    return Preprocess(config.image_size, "shortest", shorter, "bicubic", IMAGENET_MEAN, IMAGENET_STD), why


FAMILY = Family(
    name="transformers DINOv2",
    signature=r"\.layer_scale1\.lambda1$",
    keys=KEYS,
    ignored=r"^embeddings\.mask_token$",
    fixed={"position_resize": "bicubic", "pool": "cls"},
    assumed=assumed(KINDS["dinov2"], "transformers"),
    read_config=lambda document: read_config(document, KINDS),
    preprocess=_preprocess,
)
REGISTERS = replace(
    FAMILY,
    name="DINOv2 with registers",
    signature=r"^embeddings\.register_tokens$",
    fixed={"position_resize": "bicubic_antialias", "pool": "cls"},
    assumed=assumed(KINDS_REGISTERS["dinov2_with_registers"], "transformers"),
    read_config=lambda document: read_config(document, KINDS_REGISTERS),
)
