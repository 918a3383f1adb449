"""The model card: the README.md beside a checkpoint's weights."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vit.checkpoints.families import huggingface
from vit.checkpoints.formats.json_documents import dump_json
from vit.confidence import figure, recorded, share
from vit.model.config import ViTConfig


class _Section(NamedTuple):
    title: str
    facts: tuple[str, ...]


_SECTIONS = (
    _Section("Data", ("data", "images", "augmentation")),
    _Section("Recipe", ("recipe", "preset", "epochs", "batch_size", "lr", "seed")),
    _Section("Cost", ("hardware", "time", "seconds")),
    _Section("Accuracy", (
        "accuracy", "accuracy_on", "balanced_accuracy", "validation_accuracy", "validation_accuracy_on",
        "cross_validated_accuracy", "weights", "temperature", "sure_from", "sure_on",
    )),
    _Section("Limits", ("limits", "assumed")),
)  # fmt: skip
_MEASURED = ("faithfulness", "heads")  # sections that are written only if the fact was measured


def write_card(
    name: str,
    config: ViTConfig,
    labels: Sequence[str],
    facts: Mapping[str, Any],
    how_to_open: Sequence[str] | None = None,
    metadata: str | None = None,
) -> str:
    """Return the README.md of a checkpoint.

    Args:
        facts: `accuracy` (on test pictures, share from 0 to 1) and `accuracy_on` ("33 test pictures"),
            `validation_accuracy` and `validation_accuracy_on`, `data`, `recipe`, `hardware`, `time` (text, or seconds),
            `limits`, `license`, `params` and any other recorded fact. A mapping becomes a list.
        how_to_open: lines of the last section; None for a checkpoint in our own format.
        metadata: YAML for the Hub; None to derive it from the licence and accuracy in `facts`.
    """
    if metadata is None:
        lines = [f"license: {dump_json(facts['license'])}"] if facts.get("license") else []
        lines += ["pipeline_tag: image-classification", "tags:", "  - vit", "  - image-classification"]
        if "accuracy" in facts or "validation_accuracy" in facts:
            lines += ["metrics:", "  - accuracy"]
    else:
        lines = metadata.splitlines()
    size, what = " x ".join(map(str, config.image_size)), "estimated numbers" if config.regression else "classes"
    lines = ["---", *lines, "---", "", f"# {name}", ""]
    lines.append(
        f"A Vision Transformer for pictures of {size} px in patches of {config.patch_size} px: {config.depth} blocks, "
        f"width {config.dim}, {config.heads} heads, {facts.get('params', 0):,} parameters, {len(labels)} {what}."
    )
    stated = set(_MEASURED) | {fact for section in _SECTIONS for fact in section.facts} | {"license", "params"}
    others = {key: value for key, value in facts.items() if key not in stated}
    for section in _SECTIONS:
        stated_here = {key: facts[key] for key in section.facts if facts.get(key) is not None}
        lines += ["", f"## {section.title}", ""]
        lines += [_stated(key, value, facts) for key, value in stated_here.items()] or ["Not recorded."]
        if section.title == "Recipe":
            lines += [_stated(key, value, facts) for key, value in others.items()]
    for key in _MEASURED:
        if isinstance(facts.get(key), list):
            lines += ["", f"## {key.capitalize()}", "", *map(str, facts[key])]
    usage = _how_to_open(name, config) if how_to_open is None else how_to_open
    return "\n".join([*lines, "", "## How to open it", "", *usage]) + "\n"


def renamed(card: str, name: str, new: str) -> str:
    """Rename a checkpoint in a card that `write_card` made; text that people added is kept.

    >>> renamed("# best\\n\\nThe best of 5.\\n\\n    vit classify PICTURE --checkpoint best\\n", "best", "cats")
    '# cats\\n\\nThe best of 5.\\n\\n    vit classify PICTURE --checkpoint cats\\n'
    """
    stated = re.compile(rf'(^# |--checkpoint |from_pretrained\("){re.escape(name)}(?=$|")', re.MULTILINE)
    return stated.sub(lambda found: found.group(1) + new, card)


def _stated(key: str, value: object, facts: Mapping[str, Any]) -> str:
    title = "Time" if key == "seconds" else key.replace("_", " ").capitalize()
    if isinstance(value, Mapping):
        return "\n".join([f"- {title}:", *(f"  - {k}: {v}" for k, v in value.items())])
    if key in ("accuracy", "validation_accuracy") and (measured := recorded(facts, key)):
        return f"- {title}: {figure(*measured)}"
    if key == "balanced_accuracy" and isinstance(value, int | float):
        measured = recorded(facts)
        return f"- {title}: {share(value, measured and measured[1])}"
    if key in ("time", "seconds") and isinstance(value, int | float):
        return f"- {title}: {value:,.0f} s"
    return f"- {title}: {value}"


def _how_to_open(name: str, config: ViTConfig) -> list[str]:
    lines = ["    python -m vit classify PICTURE --checkpoint " + name, ""]
    obstacles = huggingface.PLAIN_VIT.obstacles(config)
    if obstacles:
        return [*lines, f"transformers does not open this checkpoint: {', '.join(obstacles)}."]
    lines += [
        "With transformers:" if "/" in name else "With transformers, in the folder above this one:",
        "",
        "    from transformers import AutoImageProcessor, ViTForImageClassification",
        f'    processor = AutoImageProcessor.from_pretrained("{name}")',
        f'    model = ViTForImageClassification.from_pretrained("{name}", attn_implementation="eager")',
        "    # eager: with transformers' default, output_attentions=True gives nothing",
    ]
    if config.image_size[0] != config.image_size[1]:
        lines += [
            "",
            "transformers takes pictures of exactly this size; it cannot resize positions that are not square.",
        ]
    elif config.position_resize != "bicubic":
        lines += [
            "",
            "At another size transformers interpolates positions in its own way and gives other results.",
        ]
    return lines
