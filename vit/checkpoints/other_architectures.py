"""Names of tensors that reveal architectures other than a plain Vision Transformer."""

import re
from collections.abc import Sequence

from vit.checkpoints.families import READS
from vit.errors import InvalidCheckpoint
from vit.untrusted import brief

_CONVOLUTIONS = "a convolutional network"
# Tensor names that reveal other architectures; the first match wins. Descriptions begin with "a" or "an", names do not.
_OTHERS = (
    (r"(^|[./])modality_encoders\.", "a data2vec 2 model with norms after the branches"),
    (r"\.self_attn\.(qkv|projection)\.", "BLIP"),
    (r"\.attention\.projection_layer\.|^encoder\.layers\.\d+\.ls1$", "an InternVL"),
    (r"^upscale_block\.block\.", "an EoMT"),
    (r"^vit_merger\.", "MiniCPM-V"),
    (r"(^|\.)layers\.\d+\.blocks\.|^features\.\d+\.\d+\.attn\.relative_position", "Swin"),
    (r"\.attn_(block|grid)\.|^stages\.\d+\.blocks\.\d+\.attn\.rel_pos\.", "MaxViT or CoAtNet"),
    (r"(^|\.)(pos_block\.\d|blocks\.\d+\.\d+\.attn\.(kv|sr|q)\.)", "Twins"),
    (r"(^|\.)block[1-4]\.\d+\.attn\.|(^|\.)encoder\.block\.\d+\.\d+\.attention\.self\.", "PVT or SegFormer"),
    (r"^stages\.\d+\.blocks\.\d+\.attn\.(kv|sr)\.", "PVT"),
    (r"(^|\.)patch_embedding\.(patch|position)_embeddings", "MONAI ViT"),
    (r"(^|\.)rel_pos(\.|_[hw]$)", "a ViT with relative positions"),
    (r"(^|\.)embeds\.(proj|pos_embed|cls_token)", "NaFlexViT"),
    (r"\.gating_param$", "ConViT"),
    (r"^pos_embed_win$", "Hiera"),
    (r"^pos_embed_\d|(^|\.)cls_token[1-4]$", "CrossViT or CoaT"),
    (r"\.attn\.q_norm\.|\.attn\.k_norm\.", "a ViT that normalises queries and keys"),
    (r"patch_embed\.backbone\.|^conv_root/|^block\d+/unit\d+/", "a hybrid of a ResNet and a ViT"),
    (r"(^|\.)layer1\.0\.(conv1|bn1)|^resnet\.", "ResNet"),
    (r"\.attention_biases$", "LeViT"),
    (r"(^|\.)stages\.\d+\.((blocks|layers)\.)?\d+\.(conv_dw|dwconv)|^features\.1\.0\.layer_scale", "ConvNeXt"),
    (r"(^|\.)stages\.\d+\.", "a network in stages"),
    (r"mlp_tokens|^MixerBlock_\d+/", "an MLP-Mixer"),
    (r"blocks_token_only|cls_attn|(^|\.)gamma3$", "CaiT or XCiT"),
    (r"(^|\.)blocks\.\d+\.(in_proj|attns\.\d+|attn_out_proj)\.", "a ViT with parallel blocks"),
    (r"(^|\.)blocks\.\d+\.attn\.lambda_q1$", "a ViT with differential attention"),
    (r"to_patch_embedding\.", "a ViT of the vit-pytorch library"),
    (r"(^|\.)layers\.\d+\.ffn\.layers\.0\.0\.", "a ViT of MMPretrain"),
    (r"attention\.self\.(query|key)|word_embeddings|embed_tokens|(^|\.)wte\.", "a model that reads language"),
    (r"\.running_mean$", _CONVOLUTIONS),
)

# Modules beside a model that has the names of a plain one, but computes something else.
BESIDE = (
    (r"^(refpoint_embed|reference_point_embed|query_feat)\b", "a detector like RF-DETR"),
    (r"^(projector|mlp_AR)\.pre_norm\.", "PaddleOCR-VL"),
)


def refuse_others(names: Sequence[str], claimed: bool, others: Sequence[tuple[str, str]] = _OTHERS) -> None:
    """Raise an error if tensor names reveal another architecture than a plain Vision Transformer.

    Args:
        claimed: a family matches these names. A batch norm then belongs to the head, and does not make it a CNN.
        others: `BESIDE` for the names of modules beside a model.
    """
    for pattern, what in others:
        if claimed and what is _CONVOLUTIONS:
            continue
        if name := next((name for name in names if re.search(pattern, name)), None):
            kind = f"a checkpoint of {what}" if what.startswith(("a ", "an ")) else f"a {what} checkpoint"
            raise InvalidCheckpoint(
                f"This is {kind} (`{brief(name[:36])}`). This app reads plain Vision Transformers: {READS}."
            )
