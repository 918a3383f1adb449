"""Generate Python code that reproduces the numbers of a view."""

from collections.abc import Mapping, Sequence
from typing import Any

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.custom_classes import CustomClasses
from vit.explain.method_call import Call, literal
from vit.explain.methods import METHODS
from vit.view.explanation import Explanation

_FUSED = {"mean": "mean(0)", "max": "amax(0)", "min": "amin(0)"}


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
    """Generate Python code that computes the numbers of a view, using only the public API of `vit`.

    Args:
        facts: of the map, see `vit.view.export.MapView`; for a class-specific map, `target` is the class's index.
        picture: file name of the picture.
        sample: name of the sample, for a picture of the gallery.
        frame: index in an animation or a video.
        video: whether the picture is a video frame.
        stretch: see `decode_image`.

    Returns:
        a program that defines `weights` (N,) and `heatmap` (rows, cols).
    """
    record, size = explanation.record, explanation.preprocess.size
    own = size == checkpoint.preprocess.size
    imports, made_of = ["import vit"], checkpoint.custom_classes.facts if checkpoint.custom_classes else {}
    if sample or made_of.get("sample"):
        imports.append("from vit.images import samples")
    method = METHODS.get(facts["method"])
    of_class = method is not None and method.of_class
    if method is not None:
        imports.extend(method.imports)
    if not own:
        imports.append("from vit.explain import resized")
    if facts["method"] == "components":
        imports.append("from vit.explain.components import components, token_features")
    elif facts["method"] == "similar" and "block" in facts:
        imports[:0] = ["from dataclasses import replace", ""]
        imports.append("from vit.explain.components import token_features")
    if video:
        imports.append("from vit.images import decode_frames")
    if not sample or "groups" in made_of or ("like" in made_of and not made_of["sample"]):
        imports = ["from pathlib import Path", "", *imports]
    data = f"samples.read({literal(sample)})" if sample else f"Path({literal(picture)}).read_bytes()"
    options = f", frame={frame}" * bool(frame) + ", stretch=True" * stretch
    heads = f", heads={checkpoint.config.heads}" if "heads" in checkpoint.assumed else ""
    preprocess = "checkpoint.preprocess" if own else f"resized(checkpoint.preprocess, {size})"
    precision = str(record.queries[0].dtype).removeprefix("torch.")
    rounded = f", {literal(precision)}" if precision != "float32" else ""
    # A comment, not an assertion: a later version with an additional config field computes another identity.
    identity = f"  # .identity was {literal(checkpoint.identity)}"
    lines = [
        *imports,
        "",
        f"checkpoint = vit.load_checkpoint({literal(_reference(checkpoint))}{heads})",
        f"assert checkpoint.hash == {literal(checkpoint.hash)}{'' if checkpoint.custom_classes else identity}",
        *(_custom_classes(checkpoint.custom_classes, identity) if checkpoint.custom_classes else []),
        f"picture = next(decode_frames({data}, [{frame}])).picture"
        if video
        else f"picture = vit.decode_image({data}{options})",
        f"pixels = {preprocess}(picture)  # (1, {explanation.preprocess.channels}, {size[0]}, {size[1]})",
        f"record = vit.relevance_record(checkpoint.model, pixels, target={facts['target']})"
        if of_class
        else f"record = vit.record(checkpoint.model, pixels{rounded})",
        *_features(facts, record.prefix, tuple(record.grid)),
        "",
        f"weights = {_expression(facts)}  # ({record.tokens},)",
        *(["weights = weights / weights.sum().clamp_min(1e-30)"] if of_class else []),
        f"heatmap = record.heatmap(weights)  # {tuple(record.grid)}",
    ]
    return "\n".join(lines) + "\n"


def _custom_classes(custom: CustomClasses, identity: str) -> list[str]:
    """Generate the lines that give a checkpoint its new classes."""
    facts, lines = custom.facts, []
    if "text" not in facts:
        identity = ""  # trained heads differ in the last digits between machines, and so do their identities
    if "text" in facts:
        template = f", {literal(facts['template'])}" if facts["template"] != "{}" else ""
        phrases = ", ".join(map(literal, facts["text"]))
        made = f"vit.classes_from_text(checkpoint, [{phrases}]{template})"
    elif "like" in facts:
        like = literal(facts["like"])
        data = f"samples.read({like})" if facts["sample"] else f"Path({like}).read_bytes()"
        lines = [f"like = vit.decode_image({data})"]
        patch, size = facts["patch"], facts["size"]
        more = f", patch={patch}" if patch else ""
        more += f", size={tuple(size)}" if size else ""
        made = f"vit.class_from_picture(checkpoint, like{more}, name={literal(facts['name'])})"
    elif "groups" in facts:
        groups = ", ".join(
            f"{literal(name)}: [{', '.join(map(literal, files))}]" for name, files in facts["groups"].items()
        )
        lines = [
            f"files = {{{groups}}}  # beside this program",
            "groups = {name: [vit.decode_image(Path(file).read_bytes()) for file in group]"
            " for name, group in files.items()}",
        ]
        made = f"vit.classes_from_pictures(checkpoint, groups, {literal(facts['classifier'])})"
    else:
        limit = f", limit={facts['limit']}" if "limit" in facts else ""
        made = f"vit.classes_from_examples(checkpoint, {literal(facts['data'])}, {literal(facts['classifier'])}{limit})"
    return [*lines, f"checkpoint = checkpoint.with_classes({made}){identity}"]


def _reference(checkpoint: Checkpoint) -> str:
    """Return the argument for `load_checkpoint`: a name, or the path of a run's checkpoint."""
    run = checkpoint.name.removeprefix("run-")
    return checkpoint.name if run == checkpoint.name else f"runs/{run}/checkpoints/best"


def _features(facts: Mapping[str, Any], prefix: Sequence[str], grid: tuple[int, ...]) -> list[str]:
    """Generate the lines that compute features, for views whose features are not in the record."""
    features = f"token_features(checkpoint.model, pixels, {facts.get('block')})"
    if facts["method"] == "similar" and "block" in facts:
        return [f"record = replace(record, features={features})"]
    if facts["method"] != "components":
        return []
    return [
        f"features = {features}  # (N, D)",
        f"patches = features[{len(prefix)}:].unflatten(0, {grid})",
        "basis = components([patches])  # of this picture alone; the page's is of all that are open",
    ]


def _expression(facts: Mapping[str, Any]) -> str:
    """Generate the expression that computes the numbers of a view from `record`."""
    if facts["method"] == "components":
        return "((features.double() - basis.mean) @ basis.directions[0]).float()"
    if facts["method"] == "similar":
        return f"record.similarity({facts['query']})"
    if facts["method"] == "pool":
        head = facts["head"]
        return "record.pool_attention" + (f".{_FUSED[head]}" if isinstance(head, str) else f"[{head}]")
    method = METHODS[facts["method"]]
    query = f"query={facts['query']}" if "query" in facts else ""
    if query and facts.get("direction") == "to":
        query += ', direction="to"'
    settings = {name: facts[name] for name in method.settings if name in facts}
    return method.code(Call(query, facts.get("target", 0), settings))
