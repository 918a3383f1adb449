"""The text tower and tokenizer of CLIP and SigLIP, run by transformers; the image tower is our own model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vit.errors import InvalidCheckpoint, UserError
from vit.model.config import MAX_DEPTH
from vit.out_of_memory import is_out_of_memory
from vit.untrusted import brief


class TextTower(NamedTuple):
    """Encodes phrases as embeddings.

    Attributes:
        name: of the checkpoint.
        model: transformers' model with both towers.
        tokenizer: transformers' tokenizer.
        longest: maximum length of a phrase [tokens].
        padded: whether phrases are padded to the maximum length, as in training.
    """

    name: str
    model: Any
    tokenizer: Any
    longest: int
    padded: bool

    @torch.inference_mode()
    def encode(self, phrases: Sequence[str]) -> Tensor:
        """Encode phrases as text embeddings (n, E), not normalised.

        Raises:
            UserError: a phrase has too many tokens.
            InvalidCheckpoint: tokenizer or tower are damaged.
        """
        with _damage_named(self.name):
            for phrase, ids in zip(phrases, self.tokenizer(list(phrases))["input_ids"], strict=True):
                if len(ids) > self.longest:
                    raise UserError(
                        f"{brief(phrase)!r} has {len(ids)} tokens, and the text tower reads {self.longest}."
                    )
            padding = {"padding": "max_length", "max_length": self.longest} if self.padded else {"padding": True}
            tokens = self.tokenizer(list(phrases), return_tensors="pt", **padding)
            inputs = {name: tokens[name] for name in ("input_ids", "attention_mask") if name in tokens}
            return self.model.get_text_features(**inputs).pooler_output.float()


@contextmanager
def _damage_named(name: str) -> Iterator[None]:
    """Turn what transformers and tokenizers raise on damaged files into a sentence: they raise anything.

    A panic of the tokenizers, which are written in Rust, is a `BaseException` of a class that cannot be imported.
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if is_out_of_memory(error) or not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
            raise
        why = brief(" ".join(str(error).split()))
        raise InvalidCheckpoint(
            f"The text tower of {brief(name)} or its tokenizer is damaged: {why}. Download its files again."
        ) from error


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
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}  # else it would ask on the console
    with _damage_named(name):
        _check_sizes(transformers.AutoConfig.from_pretrained(folder, **local).text_config, folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **local)
        model, report = transformers.AutoModel.from_pretrained(
            folder, **local, dtype=torch.float32, output_loading_info=True
        )
    if missing := sorted(key for key in report["missing_keys"] if not key.startswith("vision_model.")):
        raise InvalidCheckpoint(
            f"{brief(name)} holds no text tower: `{brief(missing[0])}` is missing. Classes need examples."
        )
    model.vision_model = None  # our own model replaces it
    longest = model.config.text_config.max_position_embeddings
    return TextTower(name, model.eval(), tokenizer, longest, padded=model.config.model_type == "siglip")


def _check_sizes(text: Any, folder: Path) -> None:
    """Raise ValueError before a tower is built that its files cannot hold; a number has a byte or more."""
    rows = text.vocab_size + text.max_position_embeddings + text.num_hidden_layers * text.intermediate_size
    if text.num_hidden_layers > MAX_DEPTH or rows * text.hidden_size > sum(p.stat().st_size for p in folder.iterdir()):
        raise ValueError("config.json states a larger one than the weights hold")
