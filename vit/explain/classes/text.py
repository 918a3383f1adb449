"""Typed phrases as classes, for checkpoints that learnt from pictures with texts (CLIP, SigLIP).

The picture side is our model; phrases are read by the text tower of the same folder, see
`vit.checkpoints.text_tower`.
"""

from collections.abc import Sequence

from vit.checkpoints.checkpoint import CONFIG, VOCABULARIES, Checkpoint, reads_text
from vit.checkpoints.custom_classes import CustomClasses
from vit.checkpoints.formats.json_documents import read_json
from vit.checkpoints.text_tower import load_text_tower
from vit.errors import InvalidCheckpoint, UserError
from vit.model.classification_heads import CosineHead
from vit.untrusted import brief

MAX_PHRASES = 1000


def classes_from_text(checkpoint: Checkpoint, phrases: Sequence[str], template: str = "{}") -> CustomClasses:
    """Make typed phrases the classes of a checkpoint that compares pictures with texts.

    The logits are those of the published model: cosine similarity times a learnt scale; SigLIP adds a bias. CLIP
    applies a softmax over all phrases, SigLIP a sigmoid to each.

    Args:
        checkpoint: as its files have it, opened from a folder that also holds the text tower and the tokenizer.
        phrases: one per class, all different.
        template: text for the tower, with {} in place of the phrase: "a photo of a {}".

    Raises:
        UserError: no phrases, or two alike; no braces in the template; a phrase too long.
        InvalidCheckpoint: the checkpoint has no text tower.

    Sources: Radford et al. 2021, arXiv 2103.00020; Zhai et al. 2023, arXiv 2303.15343.
    """
    names = check_phrases(phrases, template)
    if why := obstacle(checkpoint):
        raise InvalidCheckpoint(why)
    tower = load_text_tower(checkpoint.path, checkpoint.name, checkpoint.hash)
    directions = tower.encode([template.replace("{}", name) for name in names])
    model = tower.model
    bias = model.logit_bias.item() if hasattr(model, "logit_bias") else 0.0
    width = checkpoint.config.num_classes or checkpoint.config.dim
    if directions.shape[1] != width:
        raise InvalidCheckpoint(
            f"The text tower of {brief(checkpoint.name)} gives {directions.shape[1]} numbers and its picture tower "
            f"{width}, so the two cannot be compared."
        )
    head = CosineHead(checkpoint.model.head, directions, model.logit_scale.exp().item(), bias)
    read = "" if template == "{}" else f", read as “{template}”"
    return CustomClasses(
        names=names,
        head=head.eval(),
        source=f"{len(names)} typed phrases{read}",
        activation="sigmoid" if hasattr(model, "logit_bias") else "softmax",
        facts={"text": list(names), "template": template},
    )


def check_phrases(phrases: Sequence[str], template: str = "{}") -> tuple[str, ...]:
    """Strip the phrases, and check them and the template.

    Raises:
        UserError: no phrases, too many, an empty one, or two alike; no braces in the template.

    >>> check_phrases([" a cat", "a dog"])
    ('a cat', 'a dog')
    """
    names = tuple(" ".join(phrase.split()) for phrase in phrases)
    if not names or "" in names:
        raise UserError("Type a phrase for each class.")
    if len(names) > MAX_PHRASES:
        raise UserError(f"At most {MAX_PHRASES:,} phrases are compared, not {len(names):,}.")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{brief(twice)!r} occurs twice. All phrases must differ.")
    if template.count("{}") != 1:
        raise UserError(
            f"A template needs {{}} once, where the phrase goes, as in “a photo of a {{}}”, not {brief(template)!r}."
        )
    return names


def obstacle(checkpoint: Checkpoint) -> str:
    """Return why a checkpoint does not support phrases; "" if it does. Reads no weights."""
    folder = checkpoint.path
    if not folder.is_dir() or not (folder / CONFIG).is_file():
        return f"{brief(checkpoint.name)} is a picture tower alone, without the text tower that reads phrases."
    document = read_json((folder / CONFIG).read_bytes(), CONFIG)
    if not reads_text(document):
        return f"{brief(checkpoint.name)} was not trained on pictures with texts, so it does not support phrases."
    if not any((folder / file).is_file() for file in VOCABULARIES):
        return (
            f"{brief(checkpoint.name)} lacks the files of its tokenizer, such as tokenizer.json. Put them beside its "
            "weights."
        )
    return ""
