"""Checkpoint families: one declarative file of names per library. `vit.checkpoints.recognition` reads them.

To add a family, write `vit/checkpoints/families/<name>.py` with its `FAMILIES`; it is discovered here.
"""

from importlib import import_module
from pkgutil import iter_modules

from vit.checkpoints.families.family import Family

_MODULES = [import_module(f"{__name__}.{name}") for _, name, _ in iter_modules(__path__)]

FAMILIES: tuple[Family, ...] = tuple(family for module in _MODULES for family in getattr(module, "FAMILIES", ()))
# `model_type` values in config.json of transformers.
MODEL_TYPES = {kind for module in _MODULES for kind in getattr(module, "MODEL_TYPES", ())}

READS = "ViT, DeiT, MAE, I-JEPA, BEiT, EVA-02, DINO, DINOv2, DINOv3, CLIP, SigLIP (docs/checkpoints.md)"
