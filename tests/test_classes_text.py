"""Typed phrases as classes: compared with transformers on the same picture and phrases."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from damages import damages
from test_relevance import explicit, full_relevance
from text_models import clip, siglip
from transformers import AutoTokenizer, CLIPModel, SiglipModel

import vit
from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.load import summarise
from vit.checkpoints.text_tower import load_text_tower
from vit.errors import InvalidCheckpoint, UserError
from vit.explain.classes import text
from vit.explain.methods import weights
from vit.explain.recorded_pass import RecordedPass

PHRASES = ["a cat", "Ünï©ödé 🐈‍⬛", "\u200bzero", "aaaaaaaaaa", "<|endoftext|>", "日本語", "%s {} \\n"]


@pytest.fixture(scope="module", params=[clip, siglip], ids=["CLIP", "SigLIP"])
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder as on the Hub, and transformers' model of it."""
    folder = tmp_path_factory.mktemp(request.param.__name__)
    torch.manual_seed(0)
    request.param(folder)
    kind = CLIPModel if request.param is clip else SiglipModel
    return folder, kind.from_pretrained(folder).eval()


def theirs(folder: Path, model: Any, pixels: torch.Tensor, phrases: list[str]) -> torch.Tensor:
    """Return the logits of the published model: (1, C)."""
    longest = model.config.text_config.max_position_embeddings
    padding = {"padding": "max_length", "max_length": longest} if isinstance(model, SiglipModel) else {"padding": True}
    tokens = AutoTokenizer.from_pretrained(folder)(phrases, return_tensors="pt", **padding)
    inputs = {name: tokens[name] for name in ("input_ids", "attention_mask") if name in tokens}
    with torch.inference_mode():
        return model(pixel_values=pixels, **inputs).logits_per_image


def phrases_for(model: Any) -> list[str]:
    return ["a cat", "a dog", "cat dog"] if isinstance(model, SiglipModel) else PHRASES


def test_logits_are_those_of_the_published_model(published: Any, pictures: Any) -> None:
    folder, model = published
    phrases, checkpoint = phrases_for(model), vit.load_checkpoint(folder)
    pixels = pictures(count=1)
    zero_shot = checkpoint.with_classes(vit.classes_from_text(checkpoint, phrases))
    expected = theirs(folder, model, pixels, phrases)
    with torch.inference_mode():
        logits = zero_shot.model(pixels).logits
    assert logits == pytest.approx(expected, rel=1e-5, abs=1e-5) and expected.std() > 1e-3
    shares = zero_shot.model.probabilities(logits)
    assert shares == pytest.approx(
        expected.sigmoid() if isinstance(model, SiglipModel) else expected.softmax(-1), abs=1e-5
    )
    assert zero_shot.labels == tuple(phrases) and zero_shot.config.num_classes == len(phrases)


def test_template_is_read_with_the_phrase_in_it(published: Any, pictures: Any) -> None:
    folder, model = published
    checkpoint = vit.load_checkpoint(folder)
    custom = vit.classes_from_text(checkpoint, ["cat", "dog"], template="a {}")
    with torch.inference_mode():
        logits = checkpoint.with_classes(custom).model(pictures(count=1)).logits
    assert logits == pytest.approx(theirs(folder, model, pictures(count=1), ["a cat", "a dog"]), rel=1e-5, abs=1e-5)
    assert custom.names == ("cat", "dog")


def test_relevance_of_a_phrase_equals_that_of_the_full_matrices(published: Any, pictures: Any) -> None:
    folder, model = published
    checkpoint = vit.load_checkpoint(folder)
    zero_shot = checkpoint.with_classes(vit.classes_from_text(checkpoint, phrases_for(model)))
    recorded = RecordedPass.of_class(zero_shot.model, pictures(count=1), 1)
    attention, gradient = explicit(zero_shot.model, pictures(count=1), 1)
    expected = full_relevance(attention, gradient)
    for query in range(recorded.record.tokens):
        own = expected[query].clone()
        own[query] -= 1  # start of the product: the identity
        assert recorded.record.relevance(query, own=False) == pytest.approx(own, abs=1e-6)
    assert not torch.equal(
        weights(recorded, "relevance"),
        weights(RecordedPass.of_class(zero_shot.model, pictures(count=1), 2), "relevance"),
    )


def test_other_phrases_are_another_checkpoint_on_the_same_weights(published: Any) -> None:
    folder, model = published
    checkpoint = vit.load_checkpoint(folder)
    first, second = phrases_for(model)[:2]
    zero_shot, again, other = (
        checkpoint.with_classes(vit.classes_from_text(checkpoint, phrases))
        for phrases in ([first, second], [first, second], [second, first])
    )
    assert zero_shot.identity == again.identity
    assert len({checkpoint.identity, zero_shot.identity, other.identity}) == 3
    assert zero_shot.model.blocks is checkpoint.model.blocks
    assert checkpoint.config.num_classes != 2 and not checkpoint.labels


@pytest.mark.parametrize(
    ("phrases", "template", "message"),
    [
        ([], "{}", "Type a phrase for each class"),
        (["a cat", "  "], "{}", "Type a phrase for each class"),
        (["a cat", "a  cat"], "{}", "'a cat' occurs twice"),
        (["a cat"], "a photo", "needs {} once"),
        (["a cat"], "{} {}", "needs {} once"),
        (["cat " * 100, "dog"], "{}", "tokens, and the text tower reads"),
    ],
)
def test_unusable_phrases_are_refused(published: Any, phrases: list[str], template: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        vit.classes_from_text(vit.load_checkpoint(published[0]), phrases, template)


def test_vision_tower_alone_has_no_phrases(published: Any, tmp_path: Path, saved: Path) -> None:
    published[1].vision_model.save_pretrained(tmp_path / "tower")
    for path, message in ((tmp_path / "tower", "does not support phrases"), (saved, "does not support phrases")):
        with pytest.raises(InvalidCheckpoint, match=message):
            vit.classes_from_text(vit.load_checkpoint(path), ["a cat"])


def test_missing_text_tower_is_not_initialised_at_random(published: Any, tmp_path: Path) -> None:
    folder, model = published
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("text_model.encoder")}
    model.save_pretrained(tmp_path, state_dict=state)
    for file in folder.glob("*token*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(InvalidCheckpoint, match=r"holds no text tower: `text_model\.encoder"):
        vit.classes_from_text(vit.load_checkpoint(tmp_path), ["a cat"])


def test_checkpoint_without_tokenizer_names_what_is_missing(published: Any, tmp_path: Path) -> None:
    published[1].save_pretrained(tmp_path)
    checkpoint: Checkpoint = vit.load_checkpoint(tmp_path)
    assert "tokenizer.json" in text.obstacle(checkpoint)
    with pytest.raises(InvalidCheckpoint, match="tokenizer"):
        vit.classes_from_text(checkpoint, ["a cat"])


def test_projection_is_not_counted_as_classes(published: Any) -> None:
    folder, _ = published
    info = summarise(folder)
    assert info.labels == len(vit.load_checkpoint(folder).labels) == 0 and not info.problem


# --- Damaged files --------------------------------------------------------------------------------------------------


def rewrite(folder: Path, file: str, change: Callable[[Any], Any]) -> None:
    path = folder / file
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def with_text_config(**changes: Any) -> Callable[[Path], object]:
    def change(document: Any) -> Any:
        return document | {"text_config": document["text_config"] | changes}

    return lambda folder: rewrite(folder, "config.json", change)


def with_pattern(pattern: str) -> Callable[[Path], object]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return lambda folder: rewrite(folder, "tokenizer.json", lambda document: document | {"pre_tokenizer": split})


DAMAGED: dict[str, Callable[[Path], object]] = {
    "empty tokenizer": lambda folder: (folder / "tokenizer.json").write_bytes(b""),
    "tokenizer of another type": lambda folder: (folder / "tokenizer.json").write_text("[1]"),
    "torn tokenizer": lambda folder: (folder / "tokenizer.json").write_text('{"version": "1.0", "trunc'),
    "tokenizer with a pattern that takes long": with_pattern("(a+)+$"),
    "tokenizer's config of another type": lambda folder: (folder / "tokenizer_config.json").write_text("[1]"),
    "tokenizer's config without a class": lambda folder: (folder / "tokenizer_config.json").write_text("{}"),
    "token of another type": lambda folder: rewrite(
        folder, "tokenizer_config.json", lambda document: document | {"pad_token": 1.5}
    ),
    "ids beyond the vocabulary": with_text_config(vocab_size=1),
    "tower of another type": with_text_config(layer_norm_eps="a"),
    "tower of many layers": with_text_config(num_hidden_layers=10**6),
    "tower of many words": with_text_config(vocab_size=10**9),
}


def refusal(folder: Path, checkpoint: Checkpoint) -> str:
    """Return the sentence, at most 250 characters; "" if phrases can be read."""
    load_text_tower.cache_clear()
    try:
        vit.classes_from_text(checkpoint, ["a" * 40 + " cat", "a dog"])
    except InvalidCheckpoint as error:
        assert len(str(error)) <= 250 and "\n" not in str(error) and str(folder) not in str(error)
        return str(error)
    return ""


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_text_tower_or_tokenizer_is_a_sentence(published: Any, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(published[0], folder)
    checkpoint = vit.load_checkpoint(folder)
    assert not refusal(folder, checkpoint)
    DAMAGED[name](folder)
    words = refusal(folder, checkpoint)
    accepted = isinstance(published[1], CLIPModel) and name in ACCEPTED
    assert "is damaged" in words or (accepted and not words)


# CLIP's tokenizer is built from its vocabulary alone; its class is known without a config.
ACCEPTED = ("tokenizer with a pattern that takes long", "tokenizer's config without a class")


@pytest.mark.exhaustive
def test_any_damage_beside_a_text_tower_is_a_sentence_or_opens(published: Any, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    checkpoint = replace(vit.load_checkpoint(published[0]), path=folder)
    for file in sorted(path for path in published[0].iterdir() if path.suffix == ".json"):
        dice = random.Random(8)
        every = list(damages(file, dice))
        for _, damage in dice.sample(every, min(len(every), 40)):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(published[0], folder)
            damage(folder / file.name)
            refusal(folder, checkpoint)
