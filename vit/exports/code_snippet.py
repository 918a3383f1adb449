"""Generate Python code that reproduces the numbers of a view."""

from collections.abc import Mapping
from typing import Any

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.custom_classes import CustomClasses
from vit.view.explanation import Explanation


def snippet(
    explanation: Explanation,
    checkpoint: Checkpoint,
    facts: Mapping[str, Any],
    picture: str = "photo.jpg",
    *,
    sample: str = "",
    frame: int = 0,
    video: bool = False,
    stretch: bool = False,
) -> str:
    """Generate Python code that computes the map of a view, using only the public API of `vit`.

    Args:
        facts: arguments of `vit.heatmap`, or of a view, see `vit.view.map_view.facts_of`. Size and, unless stated,
            precision are those of the explanation.
        picture: file name of the picture.
        sample: name of the sample, for a picture of the gallery.
        frame: index in an animation or a video.
        video: whether the picture is a video frame.
        stretch: see `decode_image`.

    Returns:
        a program that defines `heatmap` (rows, cols).
    """
    made_of = checkpoint.custom_classes.facts if checkpoint.custom_classes else {}
    imports, computed = _computed(explanation, checkpoint, facts)
    if sample or made_of.get("sample"):
        imports.append("from vit.images import samples")
    if video:
        imports.append("from vit.images import decode_frames")
    if not sample or "groups" in made_of or ("like" in made_of and not made_of["sample"]):
        imports = ["from pathlib import Path", "", *imports]
    data = f"samples.read({_literal(sample)})" if sample else f"Path({_literal(picture)}).read_bytes()"
    options = f", frame={frame}" * bool(frame) + ", stretch=True" * stretch
    heads = f", heads={checkpoint.config.heads}" if "heads" in checkpoint.assumed else ""
    # A comment, not an assertion: a later version with an additional config field computes another identity.
    identity = f"  # .identity was {_literal(checkpoint.identity)}"
    lines = [
        *imports,
        "",
        f"checkpoint = vit.load_checkpoint({_literal(_reference(checkpoint))}{heads})",
        f"assert checkpoint.hash == {_literal(checkpoint.hash)}{'' if checkpoint.custom_classes else identity}",
        *(_custom_classes(checkpoint.custom_classes, identity) if checkpoint.custom_classes else []),
        f"picture = next(decode_frames({data}, [{frame}])).picture"
        if video
        else f"picture = vit.decode_image({data}{options})",
        f"{computed}  # {tuple(explanation.record.grid)}",
    ]
    return "\n".join(lines) + "\n"


def _computed(explanation: Explanation, checkpoint: Checkpoint, facts: Mapping[str, Any]) -> tuple[list[str], str]:
    """Generate the imports and the lines that compute `heatmap` from `checkpoint` and `picture`."""
    size, method = explanation.preprocess.size, facts["method"]
    own = size == checkpoint.preprocess.size
    precision = str(explanation.record.queries[0].dtype).removeprefix("torch.")
    stated: dict[str, Any] = {"method": method, "precision": precision, **facts}
    if method not in ("similar", "components"):
        if method == "pool":
            stated["method"] = "attention"  # without a query: that of the pooling query
        stated |= {} if own else {"size": size}
        usual = ("direction", "from"), ("precision", "float32")
        arguments = [f"{name}={_literal(value)}" for name, value in stated.items() if (name, value) not in usual]
        return ["import vit"], f"heatmap = vit.heatmap(checkpoint, picture, {', '.join(arguments)})"
    imports = ["import vit"] + ["from vit.explain import resized"] * (not own)
    preprocess = "checkpoint.preprocess" if own else f"resized(checkpoint.preprocess, {size})"
    pixels, block = f"pixels = {preprocess}(picture)\n", facts.get("block")
    if method == "components":
        return [*imports, "from vit.explain.components import components, patch_features"], (
            f"{pixels}features = patch_features(checkpoint.model, pixels, {block})  # (rows, cols, D)\n"
            "basis = components([features])  # of this picture alone; the page's is of all that are open\n"
            "heatmap = basis.values[0][..., 0].float()"
        )
    lines = f"{pixels}record = vit.record(checkpoint.model, pixels, {_literal(stated['precision'])})\n"
    if block is not None:
        imports = ["from dataclasses import replace", "", *imports, "from vit.explain.components import token_features"]
        lines += f"record = replace(record, features=token_features(checkpoint.model, pixels, {block}))\n"
    return imports, f"{lines}heatmap = record.heatmap(record.similarity({facts['query']}))"


def _custom_classes(custom: CustomClasses, identity: str) -> list[str]:
    """Generate the lines that give a checkpoint its new classes."""
    facts, lines = custom.facts, []
    if "text" not in facts:
        identity = ""  # trained heads differ in the last digits between machines, and so do their identities
    if "text" in facts:
        template = f", {_literal(facts['template'])}" if facts["template"] != "{}" else ""
        phrases = ", ".join(map(_literal, facts["text"]))
        made = f"vit.classes_from_text(checkpoint, [{phrases}]{template})"
    elif "like" in facts:
        like = _literal(facts["like"])
        data = f"samples.read({like})" if facts["sample"] else f"Path({like}).read_bytes()"
        lines = [f"like = vit.decode_image({data})"]
        patch, size = facts["patch"], facts["size"]
        more = f", patch={patch}" if patch else ""
        more += f", size={tuple(size)}" if size else ""
        made = f"vit.class_from_picture(checkpoint, like{more}, name={_literal(facts['name'])})"
    elif "groups" in facts:
        groups = ", ".join(
            f"{_literal(name)}: [{', '.join(map(_literal, files))}]" for name, files in facts["groups"].items()
        )
        lines = [
            f"files = {{{groups}}}  # beside this program",
            "groups = {name: [vit.decode_image(Path(file).read_bytes()) for file in group]"
            " for name, group in files.items()}",
        ]
        made = f"vit.classes_from_pictures(checkpoint, groups, {_literal(facts['classifier'])})"
    else:
        limit = f", limit={facts['limit']}" if "limit" in facts else ""
        made = (
            f"vit.classes_from_examples(checkpoint, {_literal(facts['data'])}, {_literal(facts['classifier'])}{limit})"
        )
    return [*lines, f"checkpoint = checkpoint.with_classes({made}){identity}"]


def _reference(checkpoint: Checkpoint) -> str:
    """Return the argument for `load_checkpoint`: a name, or the path of a run's checkpoint."""
    run = checkpoint.name.removeprefix("run-")
    return checkpoint.name if run == checkpoint.name else f"runs/{run}/checkpoints/best"


def _literal(value: object) -> str:
    """Format a value as Python code, with double quotes for strings without special characters.

    >>> _literal("cat"), _literal('a"b'), _literal(3)
    ('"cat"', '\\'a"b\\'', '3')
    """
    plain = isinstance(value, str) and value.isprintable() and not set(value) & set("\"'\\")
    return f'"{value}"' if plain else repr(value)
