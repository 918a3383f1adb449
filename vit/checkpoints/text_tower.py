"""The text tower and tokenizer of CLIP and SigLIP, which transformers computes; the picture side is our own model."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vit.errors import InvalidCheckpoint, UserError
from vit.untrusted import brief


class TextTower(NamedTuple):
    """What turns phrases into directions.

    Attributes:
        model: transformers' own, of both towers.
        tokenizer: likewise.
        longest: phrase that it reads [tokens].
        padded: every phrase is brought to that length, as in training.
    """

    model: Any
    tokenizer: Any
    longest: int
    padded: bool

    @torch.inference_mode()
    def encode(self, phrases: Sequence[str]) -> Tensor:
        """Phrases to directions (n, E), of any length.

        Raises:
            UserError: a phrase has too many tokens.
        """
        for phrase, ids in zip(phrases, self.tokenizer(list(phrases))["input_ids"], strict=True):
            if len(ids) > self.longest:
                raise UserError(f"{brief(phrase)!r} has {len(ids)} tokens, and the text tower reads {self.longest}.")
        padding = {"padding": "max_length", "max_length": self.longest} if self.padded else {"padding": True}
        tokens = self.tokenizer(list(phrases), return_tensors="pt", **padding)
        inputs = {name: tokens[name] for name in ("input_ids", "attention_mask") if name in tokens}
        return self.model.get_text_features(**inputs).pooler_output.float()


@lru_cache(maxsize=1)
def load_text_tower(folder: Path, name: str, weights: str) -> TextTower:
    """Load the text tower of a folder, once for weights of this hash.

    Raises:
        InvalidCheckpoint: there is none, or it cannot be read.
    """
    try:
        import transformers  # noqa: PLC0415, TID251  2 s, and whoever types no phrase needs none of it
    except ModuleNotFoundError as error:
        raise UserError("Phrases are read by transformers, which is not installed: pip install transformers") from error
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model, report = transformers.AutoModel.from_pretrained(
            folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        why = " ".join(str(error).split())
        raise InvalidCheckpoint(f"The text tower of {name} cannot be opened: {why[:300]}") from error
    if missing := sorted(key for key in report["missing_keys"] if not key.startswith("vision_model.")):
        raise InvalidCheckpoint(f"{name} holds no text tower: `{brief(missing[0])}` is missing. Classes need examples.")
    model.vision_model = None  # ours is there
    longest = model.config.text_config.max_position_embeddings
    return TextTower(model.eval(), tokenizer, longest, padded=model.config.model_type == "siglip")
