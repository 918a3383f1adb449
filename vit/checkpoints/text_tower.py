"""The text tower and tokenizer of CLIP and SigLIP, run by transformers; the image tower is our own model."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vit.errors import InvalidCheckpoint, UserError
from vit.untrusted import brief


class TextTower(NamedTuple):
    """Encodes phrases as embeddings.

    Attributes:
        model: transformers' model with both towers.
        tokenizer: transformers' tokenizer.
        longest: maximum length of a phrase [tokens].
        padded: whether phrases are padded to the maximum length, as in training.
    """

    model: Any
    tokenizer: Any
    longest: int
    padded: bool

    @torch.inference_mode()
    def encode(self, phrases: Sequence[str]) -> Tensor:
        """Encode phrases as text embeddings (n, E), not normalised.

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
    """Load the text tower of a folder; cached for weights with this hash.

    Raises:
        InvalidCheckpoint: it is missing, or cannot be read.
    """
    try:
        import transformers  # noqa: PLC0415, TID251  takes 2 s, and only phrases need it
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
    model.vision_model = None  # our own model replaces it
    longest = model.config.text_config.max_position_embeddings
    return TextTower(model.eval(), tokenizer, longest, padded=model.config.model_type == "siglip")
