"""Export a checkpoint to ONNX: pictures in, logits and every block's attention out."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import torch
from torch import Tensor, nn

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.formats.json_documents import dump_json
from vit.files import replaced
from vit.model.transformer import VisionTransformer

MAX_BYTES = (1 << 31) - (1 << 22)  # [bytes] of weights; protobuf limits a file to 2 GiB
OPSET = 20  # the first with GELU


class _TupleOutput(nn.Module):
    """Wrap a model to return a tuple: logits, every block's attention, and the pooling attention if there is one."""

    def __init__(self, model: VisionTransformer):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Map (B, channels, height, width) to (B, C) and L times (B, H, N, N)."""
        output = self.model(images, output_attentions=True)
        assert output.attentions is not None
        return output.logits, *output.attentions, *([] if output.pool_attention is None else [output.pool_attention])


def obstacle(checkpoint: Checkpoint) -> str:
    """Return why a checkpoint cannot be exported to ONNX, in a sentence; "" if it can."""
    missing = [package for package in ("onnx", "onnxscript") if find_spec(package) is None]
    if missing:
        return f"To write ONNX files, {' and '.join(missing)} must be installed: pip install {' '.join(missing)}."
    size = 4 * sum(tensor.numel() for tensor in checkpoint.model.state_dict().values())
    if size > MAX_BYTES:
        return f"The weights have {size / 1e9:.1f} GB, and an ONNX file holds 2. Choose another format."
    return ""


def write(checkpoint: Checkpoint, model: VisionTransformer, path: Path) -> None:
    """Trace a forward pass with attention; the batch size is dynamic, the picture size that of the preprocessing.

    Args:
        model: the checkpoint's, in float32, with positions for that size.
    """
    preprocess = checkpoint.preprocess
    config = model.config
    names = ["logits", *(f"attention_{block}" for block in range(config.depth))]
    names += ["pool_attention"] if config.pool.startswith("map") else []
    images = torch.zeros(2, config.channels, *preprocess.size)
    with (
        warnings.catch_warnings(),
        redirect_stdout(StringIO()),
        _quiet_libraries("torch.onnx", "onnxscript", "onnx_ir"),
    ):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _TupleOutput(model).eval(),
            (images,),
            dynamo=True,
            dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
            input_names=["images"],
            output_names=names,
            opset_version=OPSET,
            verbose=False,
        )
    assert program is not None
    program.model.metadata_props.update(
        {
            "vit.config": dump_json(config.to_dict()),
            "labels": dump_json(list(checkpoint.labels)),
            "preprocess": dump_json(preprocess.to_config()),
            "prefix": dump_json(list(config.prefix)),
            "converted_from": f"{checkpoint.name} {checkpoint.hash}",
            "converted_from_identity": checkpoint.identity,
        }
    )
    with replaced(path) as file:
        file.write(program.model_proto.SerializeToString())


@contextmanager
def _quiet_libraries(*names: str) -> Iterator[None]:
    """Silence the progress messages of some libraries temporarily."""
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
