"""Random text-and-picture models in the Hub's format, with generated tokenizers."""

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer, PreTrainedTokenizerFast, SiglipConfig, SiglipModel

SIZES = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
PICTURE = dict(SIZES, image_size=32, patch_size=8)


def clip(folder: Path) -> None:
    """Build a random CLIP with a byte-level tokenizer."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    end = len(vocabulary) - 1
    ids = dict(vocab_size=len(vocabulary), bos_token_id=end - 1, eos_token_id=end, pad_token_id=end)
    config = CLIPConfig(text_config=SIZES | ids, vision_config=PICTURE, projection_dim=24)
    CLIPModel(config).save_pretrained(folder)
    CLIPTokenizer(vocab={word: i for i, word in enumerate(vocabulary)}, merges=[]).save_pretrained(folder)


def siglip(folder: Path) -> None:
    """Build a random SigLIP with a tokenizer of three words."""
    tokenizer = Tokenizer(models.WordLevel({"</s>": 0, "<unk>": 1, "a": 2, "cat": 3, "dog": 4}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 0)])
    config = SiglipConfig(text_config=SIZES | {"vocab_size": 8, "max_position_embeddings": 16}, vision_config=PICTURE)
    SiglipModel(config).save_pretrained(folder)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="</s>", eos_token="</s>", unk_token="<unk>")
    fast.save_pretrained(folder)
