"""A view as the Python that computes its numbers, to be read, copied and run elsewhere."""

from collections.abc import Mapping, Sequence
from typing import Any

from vit.checkpoints.answers import Answers
from vit.checkpoints.checkpoint import Checkpoint
from vit.explain.methods import METHODS, Call, literal
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
    """Python that computes the numbers of a view, with the public names of `vit` alone.

    Args:
        facts: of a map, as in `vit.view.export.MapView`; of a class, with its index as `target`.
        picture: the name of its file.
        sample: its name, of a picture of the gallery.
        frame: of an animation or a video.
        video: it is a frame of one.
        stretch: see `decode_image`.

    Returns:
        a program that leaves `weights` (N,) and `heatmap` (rows, cols).
    """
    record, size = explanation.record, explanation.preprocess.size
    own = size == checkpoint.preprocess.size
    imports, made_of = ["import vit"], checkpoint.answers.facts if checkpoint.answers else {}
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
    # Not asserted: it is another one where a later version's config has one more field.
    identity = f"  # .identity was {literal(checkpoint.identity)}"
    lines = [
        *imports,
        "",
        f"checkpoint = vit.load_checkpoint({literal(_reference(checkpoint))}{heads})",
        f"assert checkpoint.hash == {literal(checkpoint.hash)}{'' if checkpoint.answers else identity}",
        *(_answers(checkpoint.answers, identity) if checkpoint.answers else []),
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


def _answers(answers: Answers, identity: str) -> list[str]:
    """What gives a checkpoint its classes from outside."""
    facts, lines = answers.facts, []
    if "text" not in facts:
        identity = ""  # the last digits of what is learnt are another machine's
    if "text" in facts:
        template = f", {literal(facts['template'])}" if facts["template"] != "{}" else ""
        phrases = ", ".join(map(literal, facts["text"]))
        made = f"vit.answers_from_text(checkpoint, [{phrases}]{template})"
    elif "like" in facts:
        like = literal(facts["like"])
        data = f"samples.read({like})" if facts["sample"] else f"Path({like}).read_bytes()"
        lines = [f"like = vit.decode_image({data})"]
        patch, size = facts["patch"], facts["size"]
        more = f", patch={patch}" if patch else ""
        more += f", size={tuple(size)}" if size else ""
        made = f"vit.answers_from_picture(checkpoint, like{more}, name={literal(facts['name'])})"
    elif "groups" in facts:
        groups = ", ".join(
            f"{literal(name)}: [{', '.join(map(literal, files))}]" for name, files in facts["groups"].items()
        )
        lines = [
            f"files = {{{groups}}}  # beside this program",
            "groups = {name: [vit.decode_image(Path(file).read_bytes()) for file in group]"
            " for name, group in files.items()}",
        ]
        made = f"vit.answers_from_pictures(checkpoint, groups, {literal(facts['classifier'])})"
    else:
        limit = f", limit={facts['limit']}" if "limit" in facts else ""
        made = f"vit.answers_from_examples(checkpoint, {literal(facts['data'])}, {literal(facts['classifier'])}{limit})"
    return [*lines, f"checkpoint = checkpoint.with_answers({made}){identity}"]


def _reference(checkpoint: Checkpoint) -> str:
    """What `load_checkpoint` takes: the name, or of a run's checkpoint its place."""
    run = checkpoint.name.removeprefix("run-")
    return checkpoint.name if run == checkpoint.name else f"runs/{run}/checkpoints/best"


def _features(facts: Mapping[str, Any], prefix: Sequence[str], grid: tuple[int, ...]) -> list[str]:
    """What brings the features of a view that is not of those that the record has."""
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
    """What computes the numbers of a view from `record`."""
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
