"""A Vision Transformer from scratch, and tools to inspect it.

The package's public API. Importing it does not import torch.
"""

from typing import TYPE_CHECKING

from vit.lazy import names_of

if TYPE_CHECKING:
    from vit.checkpoints.catalog import find_checkpoint
    from vit.checkpoints.checkpoint import Checkpoint
    from vit.checkpoints.custom_classes import CustomClasses
    from vit.checkpoints.load import list_checkpoints, load_checkpoint
    from vit.checkpoints.modules.in_memory import checkpoint_from_module
    from vit.checkpoints.save import save_checkpoint
    from vit.data.archives.import_archive import import_dataset
    from vit.errors import InvalidCheckpoint, InvalidConfig, InvalidDataset, InvalidImage, UserError
    from vit.explain.classes.examples import classes_from_examples, classes_from_pictures
    from vit.explain.classes.similarity import class_from_picture
    from vit.explain.classes.text import classes_from_text
    from vit.explain.faithfulness_correlation import removal_map
    from vit.explain.heatmap import heatmap
    from vit.explain.kriging import best_map
    from vit.explain.lrp import attnlrp
    from vit.explain.record import AttentionRecord, record
    from vit.explain.relevance import GradientRecord, legrad, relevance_record
    from vit.images.files.decode import decode_image, used_range
    from vit.images.preprocess import Preprocess
    from vit.model.config import ViTConfig
    from vit.model.transformer import VisionTransformer, ViTOutput
    from vit.training.other_loops.callbacks import lightning_callback, transformers_callback
    from vit.training.other_loops.run_writer import RunWriter

__all__, __getattr__ = names_of(__name__, __path__)
